package inproc

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/outbox"
)

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// A Subscriber receives the messages of one service. Its methods may be called
// concurrently.
type Subscriber struct {
	broker  *Broker
	service string

	mu            sync.Mutex
	closed        bool
	cancels       []context.CancelFunc
	subscriptions sync.WaitGroup
	done          chan struct{} // closed at the end of Close
}

// Subscribe returns the channel on which the messages of topic arrive. All subscriptions of the service share
// them. Messages published before the first Subscribe or SubscribeInitialize of the service do not arrive.
//
// Up to Prefetch messages are handed over without waiting for the ack of any, but only one of each ordering
// identity. A nacked message is redelivered after NackDelay, with the metadata redelivered, before later ones
// of its identity.
//
// When ctx ends, or Close is called, the channel is closed. Messages in hand can still be acked until
// DrainTimeout. The other messages stay with the service, for its other and later subscriptions. A message's
// context has the values of ctx but not its end: it ends when the message is settled or DrainTimeout is over.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	intake, cancel := context.WithCancel(ctx)
	s.cancels = append(s.cancels, cancel)
	sub := &subscription{
		opts:  s.broker.opts,
		queue: s.broker.queueFor(topic, s.service),
		out:   make(chan *message.Message),
		slots: make(chan struct{}, s.broker.opts.Prefetch),
	}
	s.subscriptions.Go(func() {
		defer cancel()
		sub.runLanes(intake, context.WithoutCancel(ctx))
	})
	return sub.out, nil
}

// SubscribeInitialize keeps messages of topic for the service from now on.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	s.broker.queueFor(topic, s.service)
	return nil
}

// Close ends every subscription, as the end of its context would, and waits for them, at most DrainTimeout.
// It returns nil. A second or concurrent call waits for the same end.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	for _, cancel := range s.cancels {
		cancel()
	}
	s.mu.Unlock()
	if first {
		s.subscriptions.Wait()
		close(s.done)
	}
	<-s.done
	return nil
}

// A subscription hands over deliveries of a queue.
type subscription struct {
	opts   Options
	queue  *queue
	out    chan *message.Message
	slots  chan struct{} // one for each message in hand
	inHand sync.WaitGroup
}

// runLanes hands over messages until intake ends, then drains.
func (s *subscription) runLanes(intake, base context.Context) {
	work, stopWork := context.WithCancel(base)
	defer stopWork()
	for intake.Err() == nil {
		select {
		case s.slots <- struct{}{}:
			s.deliverNext(intake, work)
		case <-intake.Done():
		}
	}
	close(s.out)
	s.queue.signalReaders() // a wake-up may have been meant for another subscription
	timer := time.AfterFunc(s.opts.DrainTimeout, stopWork)
	defer timer.Stop()
	s.inHand.Wait()
}

// deliverNext hands over a message, which then owns the slot, or gives the slot back.
func (s *subscription) deliverNext(intake, work context.Context) {
	l, d := s.queue.takeDelivery()
	if l == nil {
		<-s.slots
		select {
		case <-s.queue.wake:
		case <-intake.Done():
		}
		return
	}
	msg := d.copyMessage()
	ctx, cancel := context.WithCancel(work)
	msg.SetContext(ctx)
	select {
	case s.out <- msg:
		s.inHand.Go(func() {
			s.settleDelivery(intake, work, l, d.parcel, msg)
			cancel()
			<-s.slots
		})
	case <-intake.Done():
		cancel()
		<-s.slots
		s.queue.retryLane(l, false)
	}
}

// copyMessage returns the copy of a message for one handler.
func (d *delivery) copyMessage() *message.Message {
	msg := d.message.Copy()
	msg.Payload = slices.Clone(d.message.Payload)
	delete(msg.Metadata, outbox.PropertyRedelivered)
	if d.again {
		msg.Metadata[outbox.PropertyRedelivered] = "true"
	}
	return msg
}

// settleDelivery waits for the handler, and finishes or retries the delivery as the handler decided. If work
// ends first, the delivery is retried by another subscription.
func (s *subscription) settleDelivery(intake, work context.Context, l *lane, p *parcel, msg *message.Message) {
	select {
	case <-msg.Acked():
		p.confirmParcel()
		s.queue.finishDelivery(l)
		return
	case <-msg.Nacked():
		_ = backoff.Sleep(intake, s.opts.NackDelay)
	case <-work.Done():
	}
	s.queue.retryLane(l, true)
}

// MarksRedelivered reports that redeliveries carry [outbox.PropertyRedelivered].
func (s *Subscriber) MarksRedelivered() bool { return true }
