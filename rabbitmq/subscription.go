package rabbitmq

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// A subscription hands over the messages of one topic, from one epoch after
// the other.
type subscription struct {
	subscriber *Subscriber
	topic      string
	out        chan *message.Message
	slots      chan struct{} // one for each message in hand, over all epochs
	epochs     sync.WaitGroup

	unreadable int   // epochs in a row that ended over a message that the client cannot read
	own        *link // a connection of its own while there is such a message; nil: the Subscriber's
}

// An epoch is one channel with one consumer. Its deliveries are settled on it
// or not at all.
type epoch struct {
	conn       *conn
	amqp       *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	gone       chan struct{} // closed once the channel is
	cause      *amqp.Error   // why, if the broker said so; valid once gone is closed
	inHand     sync.WaitGroup
}

func (e *epoch) watch(closes <-chan *amqp.Error) {
	e.cause = <-closes
	close(e.gone)
}

// connect opens the next epoch.
func (s *subscription) connect(ctx context.Context) (*epoch, error) {
	var e *epoch
	l, prefetch := s.subscriber.link, s.subscriber.opts.Prefetch
	if s.own != nil {
		l, prefetch = s.own, 1
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
// to the dead-letter queue. Once nothing of the kind has happened for a topology
// interval, the subscription returns.
func (s *subscription) isolate(ctx context.Context, e *epoch, calm bool) {
	switch {
	case e.unreadable():
		s.unreadable++
	case calm:
		s.unreadable = 0
	}
	switch o := s.subscriber.opts; {
	case s.unreadable >= isolateAfter && s.own == nil:
		o.Logger.ErrorContext(ctx, "rabbitmq: a message cannot be read by the AMQP client; the topic goes on on a connection of its own until the broker has moved it to the dead-letter queue",
			"topic", s.topic, "cause", e.reason())
		s.own = newLink(s.subscriber.cfg.Connection, o.Connection, o.Logger)
	case s.unreadable == 0 && s.own != nil:
		s.leaveIsolation()
	}
}

// leaveIsolation closes the subscription's own connection, if it has one, once
// the messages from it are settled.
func (s *subscription) leaveIsolation() {
	if own := s.own; own != nil {
		s.own = nil
		s.epochs.Wait()
		own.close()
	}
}

// unreadable reports whether the client itself ended e because it could not
// read what the broker sent.
func (e *epoch) unreadable() bool {
	select {
	case <-e.gone:
		return e.cause != nil && !e.cause.Server &&
			(strings.Contains(e.cause.Reason, amqp.ErrSyntax.Reason) || strings.Contains(e.cause.Reason, amqp.ErrFrame.Reason))
	default:
		return false
	}
}

// run hands over messages until intake ends, then drains. base is what the
// messages' contexts are made of.
func (s *subscription) run(intake, base context.Context, e *epoch) {
	work, stopWork := context.WithCancel(base)
	defer stopWork()
	for failures := 0; e != nil; {
		began := time.Now()
		idle := s.receive(intake, work, e)
		s.retire(e)
		if intake.Err() != nil {
			break
		}
		if failures++; idle || time.Since(began) > maxPause || s.own != nil {
			failures = 0 // in isolation each loss takes the message nearer to its limit
		}
		s.isolate(intake, e, idle || time.Since(began) > s.subscriber.opts.TopologyInterval)
		if !idle && s.own == nil {
			s.subscriber.opts.Logger.WarnContext(intake, "rabbitmq: subscription lost", "topic", s.topic, "cause", e.reason())
		}
		e = s.reconnect(intake, failures)
	}
	close(s.out)
	// Every epoch ends when its last message is settled. Ending work settles
	// the rest by leaving it to the broker.
	timer := time.AfterFunc(s.subscriber.opts.DrainTimeout, stopWork)
	defer timer.Stop()
	s.epochs.Wait()
	s.leaveIsolation()
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

func (e *epoch) reason() string {
	select {
	case <-e.gone:
		if e.cause != nil {
			return e.cause.Error()
		}
		return "channel closed"
	default:
		return "consumer cancelled"
	}
}

// receive hands over the deliveries of e until intake ends or e does, or e was
// idle for the topology interval, which it reports. It gives back what it did
// not hand over.
//
// An idle consumer is replaced because the broker may have forgotten it: when
// a quorum queue is deleted and declared again at once, RabbitMQ 3.10 neither
// cancels its consumers nor delivers to them, and keeps what it believes to
// have sent them until their channel closes.
func (s *subscription) receive(intake, work context.Context, e *epoch) (idle bool) {
	interval := s.subscriber.opts.TopologyInterval
	ticker := time.NewTicker(interval/2 + rand.N(interval))
	defer ticker.Stop()
	for delivered := false; ; delivered = true {
		select {
		case s.slots <- struct{}{}: // before a delivery is taken, so none is held without one
		case <-e.gone:
			return false
		case <-intake.Done():
			s.giveBack(e)
			return false
		}
		if s.handOverNext(intake, work, e, ticker.C, &delivered) {
			continue
		}
		<-s.slots
		s.giveBack(e)
		return !delivered
	}
}

// handOverNext reports whether it handed over a message, which then owns the
// slot. If not, no more are to be taken from e. A tick clears delivered, and
// ends e if it finds it cleared.
func (s *subscription) handOverNext(intake, work context.Context, e *epoch, ticks <-chan time.Time, delivered *bool) bool {
	for {
		select {
		case d, ok := <-e.deliveries:
			*delivered = true
			if !ok {
				return false // a receive from a closed channel is no message
			}
			return s.handOver(intake, work, e, d)
		case <-ticks:
			if !*delivered {
				return false
			}
			*delivered = false
			if err := s.subscriber.declare(intake, e.conn, s.topic); err != nil && intake.Err() == nil {
				s.subscriber.opts.Logger.WarnContext(intake, "rabbitmq: topology is not as declared", "topic", s.topic, "error", err)
			}
		case <-intake.Done():
			return false
		}
	}
}

func (s *subscription) handOver(intake, work context.Context, e *epoch, d amqp.Delivery) bool {
	msg := s.unmarshal(d)
	ctx, cancel := context.WithCancel(work)
	msg.SetContext(ctx)
	e.inHand.Add(1)
	select {
	case s.out <- msg:
		go func() {
			defer e.inHand.Done()
			defer func() { <-s.slots }()
			defer cancel()
			s.settle(intake, work, e, d, msg)
		}()
		return true
	case <-intake.Done():
		_ = d.Nack(false, true) // an error means that the channel is gone, and the message back
	case <-e.gone:
	}
	cancel()
	e.inHand.Done()
	return false
}

// unmarshal is total, whatever Marshaler the user has.
func (s *subscription) unmarshal(d amqp.Delivery) *message.Message {
	msg, err := s.subscriber.cfg.Marshaler.Unmarshal(d)
	if err != nil || msg == nil {
		msg, _ = Marshaler{}.Unmarshal(d)
	}
	return msg
}

// settle waits until the handler has settled msg and tells the broker. Errors
// are not looked at: they mean that the channel is gone, and with it the
// delivery.
func (s *subscription) settle(intake, work context.Context, e *epoch, d amqp.Delivery, msg *message.Message) {
	select {
	case <-msg.Acked():
		_ = d.Ack(false)
	case <-msg.Nacked():
		e.hold(intake, s.subscriber.opts.NackDelay)
		_ = d.Nack(false, !s.subscriber.cfg.Consume.NoRequeueOnNack)
	case <-work.Done():
	}
}

// hold waits for about delay, but not on a channel that is gone or when it is
// time to stop.
func (e *epoch) hold(intake context.Context, delay time.Duration) {
	timer := time.NewTimer(delay/2 + rand.N(delay))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-intake.Done():
	case <-e.gone:
	}
}

// giveBack stops the consumer and returns what it was sent and did not hand
// over. A broker that does not answer gets it back with the channel.
func (s *subscription) giveBack(e *epoch) {
	_, err := call(context.Background(), e.conn, func() (any, error) { return nil, e.amqp.Cancel(e.tag, false) }, nil)
	if err != nil {
		return
	}
	for d := range e.deliveries {
		_ = d.Nack(false, true)
	}
}

// retire closes the channel of e once its last message is settled.
func (s *subscription) retire(e *epoch) {
	s.epochs.Go(func() {
		e.inHand.Wait()
		e.conn.closeChannel(e.amqp)
		<-e.gone
	})
}
