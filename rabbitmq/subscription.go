package rabbitmq

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A subscription hands over the messages of one topic, from one epoch after
// the other.
type subscription struct {
	subscriber *Subscriber
	topic      string
	state      *topicState
	out        chan *message.Message
	lanes      *lanes // over all epochs
	epochs     sync.WaitGroup

	unreadable int        // epochs in a row that ended over a message that the client cannot read
	own        *isolation // while there may be such a message; nil: the Subscriber's connection
}

// An isolation is a connection of a subscription's own, with prefetch 1.
type isolation struct {
	link   *link
	epochs sync.WaitGroup
}

// connect opens the next epoch.
func (s *subscription) connect(ctx context.Context) (*epoch, error) {
	var e *epoch
	l, prefetch := s.subscriber.link, s.subscriber.opts.Prefetch
	if s.own != nil {
		l, prefetch = s.own.link, 1
	}
	err := s.subscriber.persist(ctx, l, s.topic, func(c *conn) (err error) {
		e, err = s.subscriber.consume(ctx, c, s.topic, prefetch)
		return err
	})
	return e, err
}

// isolateAfter is how many epochs in a row may end over an unreadable message
// before the subscription leaves the shared connection.
const isolateAfter = 2

// isolate keeps a message that amqp091-go cannot read (a header nested too
// deeply, for one) from others. The library closes the whole connection over it,
// at every delivery. So the subscription gets a connection of its own, on which
// one message at a time is under way: the topic's other messages are not counted
// as delivered with it, until the broker, at the queue's delivery limit, moves it
// to the dead-letter queue. Whose message it was nobody can say on the shared
// connection, so that every topic may leave it. One that proves
// blameless on its own connection returns, busy or not.
func (s *subscription) isolate(ctx context.Context, e *epoch, calm bool) {
	switch {
	case e.unreadable():
		s.unreadable++
	case calm:
		s.unreadable = 0
	}
	switch o := s.subscriber.opts; {
	case s.unreadable >= isolateAfter && s.own == nil:
		o.Logger.ErrorContext(ctx, "rabbitmq: a message of this topic or of another one cannot be read by the AMQP client; the topic goes on on a connection of its own until that is calm: if the message is in its queue, until the broker has moved it to the dead-letter queue",
			"topic", s.topic, "cause", e.reason())
		s.subscriber.signals.isolated.Send(s.topic)
		s.own = &isolation{link: newLink(s.subscriber.cfg.Connection, o.Connection, o.Logger)}
	case s.unreadable == 0 && s.own != nil:
		o.Logger.InfoContext(ctx, "rabbitmq: the topic is back on the shared connection", "topic", s.topic)
		s.leaveIsolation()
	}
}

// leaveIsolation has the subscription's own connection closed, if it has one, once
// the messages from it are settled. It does not wait for that.
func (s *subscription) leaveIsolation() {
	if own := s.own; own != nil {
		s.own = nil
		s.epochs.Go(func() {
			own.epochs.Wait()
			own.link.close()
		})
	}
}

// run hands over messages until intake ends, then drains. base is what the
// messages' contexts are made of.
func (s *subscription) run(intake, base context.Context, e *epoch) {
	work, stopWork := context.WithCancel(base)
	defer stopWork()
	for failures := 0; e != nil; {
		began := time.Now()
		s.state.consumers.Add(1)
		calm := s.receive(intake, work, e)
		s.state.consumers.Add(-1)
		cause := e.reason()
		if e.cancelled() {
			s.state.cancelled.Add(1)
			cause = "the broker has cancelled the consumer, as it does when the queue is deleted with what it holds"
		}
		if s.keyed() && intake.Err() == nil {
			e.close() // while it is open the next epoch would overtake what goes back
		}
		s.retire(e)
		if intake.Err() != nil {
			break
		}
		if failures++; calm || time.Since(began) > maxPause || s.own != nil {
			failures = 0 // in isolation each loss takes the message nearer to its limit
		}
		s.isolate(intake, e, calm || time.Since(began) > s.subscriber.opts.TopologyInterval)
		if !calm && s.own == nil {
			s.subscriber.opts.Logger.WarnContext(intake, "rabbitmq: subscription lost", "topic", s.topic, "cause", cause)
		}
		e = s.reconnect(intake, failures)
	}
	close(s.out)
	// Every epoch ends when its last message is settled. Ending work settles
	// the rest by leaving it to the broker.
	timer := time.AfterFunc(s.subscriber.opts.DrainTimeout, stopWork)
	defer timer.Stop()
	s.leaveIsolation()
	s.epochs.Wait()
}

// reconnect returns nil once ctx has ended. What no retry can mend at the
// start may well be mended later, by the operator who broke it.
func (s *subscription) reconnect(ctx context.Context, failures int) *epoch {
	for n := failures; sleep(ctx, pause(n)) == nil; n++ {
		e, err := s.connect(ctx)
		if err == nil {
			return e
		}
		if ctx.Err() == nil {
			s.subscriber.opts.Logger.ErrorContext(ctx, "rabbitmq: cannot subscribe again", "topic", s.topic, "error", err)
		}
	}
	return nil
}

// retire closes the channel of e once its last message is settled.
func (s *subscription) retire(e *epoch) {
	epochs := &s.epochs
	if s.own != nil {
		epochs = &s.own.epochs
	}
	epochs.Go(func() {
		e.inHand.Wait()
		e.close()
	})
}
