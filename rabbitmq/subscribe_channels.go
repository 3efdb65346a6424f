package rabbitmq

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/backoff"
)

// A subscription hands over the messages of one topic, from one consumer channel
// after the other.
//
// It has its own connection. RabbitMQ answers basic.consume and basic.cancel for a quorum queue
// without a majority after 9 s or more, with INTERNAL_ERROR, which closes the connection. A
// message that the client cannot read closes it too. Another topic on that connection would lose
// its consumer each time.
type subscription struct {
	subscriber *Subscriber
	topic      string
	state      *topicState
	link       *link
	out        chan *message.Message
	lanes      *lanes // over all consumer channels
	channels   sync.WaitGroup

	declared   sync.Once
	isDeclared chan struct{} // closed once the topology was there for the first time

	checking atomic.Bool // the topology is being declared again
	resumes  bool        // the last consumer channel was lost, and its queue is likely to be there

	unreadable int  // consumer channels in a row that ended over a message that the client cannot read
	single     bool // one message at a time, while there may be such a message
	sizes      sizes
}

func (s *Subscriber) newSubscription(topic string) *subscription {
	return &subscription{
		subscriber: s,
		topic:      topic,
		state:      s.stateOf(topic),
		link:       newLink(s.cfg, s.opts.Connection, s.opts.Logger),
		out:        make(chan *message.Message),
		lanes:      newLanes(s.opts.Prefetch, s.opts.PrefetchBytes),
		isDeclared: make(chan struct{}),
	}
}

// stallTimeout is how long [Subscriber.Subscribe] waits for a queue that is declared and does
// not let itself be consumed.
const stallTimeout = 3 * time.Second

// startFirstChannel connects for the first time and then runs. began gets the result of the first
// connection, unless left is closed before: then startFirstChannel continues despite an error.
func (s *subscription) startFirstChannel(intake, base context.Context, began chan<- error, left <-chan struct{}) {
	defer s.link.closeLink()
	_ = s.state.pause.awaitEnd(intake) // once intake has ended, opening fails
	first, err := s.openConsumerChannel(intake)
	select {
	case began <- err:
		if err != nil {
			return
		}
	case <-left:
		if err != nil && intake.Err() == nil {
			s.logLasting(intake, err)
		}
	}
	if first == nil {
		first = s.reopenConsumerChannel(intake, 1)
	}
	s.runChannels(intake, base, first)
}

// awaitStart returns the result of the first connection. If the queue stalls, it closes left
// and returns nil: the subscription goes on trying.
func (s *subscription) awaitStart(ctx context.Context, began <-chan error, left chan<- struct{}) error {
	declared := s.isDeclared
	var stalled <-chan time.Time
	for {
		select {
		case err := <-began:
			return err
		case <-declared:
			declared, stalled = nil, time.After(stallTimeout)
		case <-stalled:
			close(left)
			s.subscriber.opts.Logger.WarnContext(ctx, "rabbitmq: the queue of the topic does not answer, as a quorum queue without a majority; the subscription goes on as soon as it does", "topic", s.topic)
			return nil
		}
	}
}

// isolateAfter is how many consumer channels in a row may end over an unreadable message
// before the subscription takes one message at a time.
const isolateAfter = 2

// isolateUnreadable keeps a message that amqp091-go cannot read (a header nested too
// deeply, for one) from others. The library closes the connection over it,
// at every delivery. So the subscription goes on with one message at a time: the
// topic's other messages are not counted as delivered with it, until the broker, at
// the queue's delivery limit, moves it to the dead-letter queue.
func (s *subscription) isolateUnreadable(ctx context.Context, cc *consumerChannel, calm bool) {
	switch {
	case cc.endedUnreadable():
		s.unreadable++
	case calm:
		s.unreadable = 0
	}
	switch o := s.subscriber.opts; {
	case s.unreadable >= isolateAfter && !s.single:
		o.Logger.ErrorContext(ctx, "rabbitmq: a message of this topic cannot be read by the AMQP client; the topic goes on with one message at a time until the broker has moved it to the dead-letter queue",
			"topic", s.topic, "cause", cc.endReason())
		s.single = true
		s.subscriber.signals.isolated.Send(s.topic)
	case s.unreadable == 0 && s.single:
		o.Logger.InfoContext(ctx, "rabbitmq: the topic goes on with more than one message at a time again", "topic", s.topic)
		s.single = false
	}
}

// runChannels hands over messages until intake ends, then drains. base is what the
// messages' contexts are made of.
func (s *subscription) runChannels(intake, base context.Context, cc *consumerChannel) {
	work, stopWork := context.WithCancel(base)
	defer stopWork()
	for failures := 0; cc != nil; {
		began := time.Now()
		s.state.channel.Store(cc)
		if s.link.hasSeveral() {
			s.link.addresses.addConsumer(s.link, cc.conn)
		}
		cc.paused = s.state.pause.enterChannel()
		s.state.consumers.Add(1)
		calm := s.receiveDeliveries(intake, work, cc)
		s.state.consumers.Add(-1)
		cause := cc.endReason()
		cancelled := cc.wasCancelled()
		s.resumes = !calm && cc.isOver() && !cancelled
		if s.isKeyed() && intake.Err() == nil || cc.isPaused() {
			cc.closeChannel() // while it is open the next consumer, here or elsewhere, would overtake what goes back
		}
		s.state.pause.leaveChannel()
		s.retireChannel(cc)
		if cancelled {
			cause = s.explainCancel(intake, cc)
		}
		if intake.Err() != nil {
			break
		}
		expected := calm || cc.isPaused()
		if failures++; expected || time.Since(began) > maxPause || s.single {
			failures = 0 // each of these losses takes the message nearer to its limit
		}
		s.isolateUnreadable(intake, cc, calm || time.Since(began) > s.subscriber.opts.TopologyInterval)
		if !expected && !s.single {
			s.subscriber.opts.Logger.WarnContext(intake, "rabbitmq: subscription lost", "topic", s.topic, "cause", cause)
		}
		cc = s.reopenConsumerChannel(intake, failures)
	}
	close(s.out)
	// Every consumer channel ends when its last message is settled. Ending work settles
	// the rest by leaving it to the broker.
	timer := time.AfterFunc(s.subscriber.opts.DrainTimeout, stopWork)
	defer timer.Stop()
	s.channels.Wait()
}

// reopenConsumerChannel connects until it succeeds, once the topic is not paused, and returns nil once ctx has ended. It
// also retries errors that are permanent at the start, because an operator may mend their cause.
func (s *subscription) reopenConsumerChannel(ctx context.Context, failures int) *consumerChannel {
	for n := failures; s.state.pause.awaitEnd(ctx) == nil && backoff.Sleep(ctx, retryPause(n)) == nil; n++ {
		cc, err := s.openConsumerChannel(ctx)
		if err == nil {
			return cc
		}
		if ctx.Err() == nil {
			s.logLasting(ctx, err)
		}
	}
	return nil
}

// logLasting logs an error that no retry mends.
func (s *subscription) logLasting(ctx context.Context, err error) {
	s.subscriber.opts.Logger.ErrorContext(ctx, "rabbitmq: a lost subscription cannot be made again until its error is mended", "topic", s.topic, "error", err)
}

const (
	// deletionPause is how long a queue that is being deleted may still be found after its consumers were cancelled.
	deletionPause = 500 * time.Millisecond

	// explainTimeout limits how long a subscription looks for its queue before it consumes again.
	explainTimeout = 3 * time.Second
)

// explainCancel says why the broker has cancelled the consumer of cc. A queue that is missing counts as deleted, with
// what it held. Each process looks before it declares the queue again, so at least one finds it missing.
func (s *subscription) explainCancel(intake context.Context, cc *consumerChannel) string {
	ctx, cancel := context.WithTimeout(intake, explainTimeout)
	defer cancel()
	cfg := s.subscriber.cfg
	look := func() error {
		_, err := requestOnChannel(ctx, cc.conn, func(ch *amqp.Channel) (amqp.Queue, error) {
			return ch.QueueDeclarePassive(cfg.Queue.GenerateName(s.topic), cfg.Queue.Durable, cfg.Queue.AutoDelete, cfg.Queue.Exclusive, false, nil)
		})
		return err
	}
	err := look()
	if err == nil && backoff.Sleep(ctx, deletionPause) == nil {
		err = look()
	}
	switch {
	case err == nil:
		return "the broker has cancelled the consumer, and its queue is there: a handler has taken longer than the consumer timeout of the broker, or the queue was deleted and declared again"
	case hasCode(err, amqp.NotFound):
		s.state.cancelled.Add(1)
		return "the broker has cancelled the consumer, because the queue was deleted, with what it held"
	}
	return "the broker has cancelled the consumer, as when the queue is deleted, and does not say whether it is there: " + err.Error()
}

// retireChannel closes the channel of cc once its last message is settled.
func (s *subscription) retireChannel(cc *consumerChannel) {
	s.channels.Go(func() {
		cc.inHand.Wait()
		cc.closeChannel()
	})
}
