package rabbitmq

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/guard"
)

// receiveDeliveries hands over the deliveries of cc until intake ends, cc ends, the topic is paused, or cc must be
// renewed. It reports the latter as calm. That is after cc was idle for the topology interval, or blameless with one
// message at a time, or if its prefetch does not suit the sizes of the messages. Deliveries that were not
// handed over go back to the broker.
//
// An idle consumer is replaced because the broker may have forgotten it. When a quorum queue is
// deleted and declared again at once, RabbitMQ 3.10 neither cancels its consumers nor delivers to
// them. It keeps the messages that it believes to have sent them until their channel closes.
func (s *subscription) receiveDeliveries(intake, work context.Context, cc *consumerChannel) (calm bool) {
	interval := s.subscriber.opts.TopologyInterval
	ticker := time.NewTicker(interval/2 + rand.N(interval))
	defer ticker.Stop()
	silent := time.NewTicker(min(silenceInterval, interval))
	defer silent.Stop()
	isolated := time.NewTicker(interval)
	defer isolated.Stop()
	s.lanes.beginChannel(cc)
	defer s.giveBackItems(cc)
	for delivered, leaving, intervals := false, false, 0; ; {
		if leaving && (!s.isKeyed() || s.lanes.hasRoom()) {
			return true
		}
		next, room := s.lanes.offerNext()
		in, out, msg := s.nextSelection(cc, next, room || leaving)
		select {
		case out <- msg:
			s.lanes.noteHandedOver()
			cc.inHand.Add(1)
			cc.conn.noteHandover()
			go s.awaitVerdict(intake, work, next)
		case d, ok := <-in:
			if !ok { // a receive from a closed channel is no message
				cc.noteEnd()
				return false
			}
			if leaving {
				cc.conn.noteHeard()
				continue // it comes again, and here it would take memory
			}
			delivered = true
			s.takeDelivery(work, cc, d)
			leaving = s.isMisfit(cc)
		case <-s.lanes.wake:
		case <-isolated.C:
			intervals++
			leaving = leaving || s.single && s.isBlameless(cc, intervals)
		case at := <-silent.C:
			if s.link.hasSeveral() && !cc.conn.heardSince(at.Add(-silenceInterval)) {
				s.checkTopology(intake, cc, true)
			}
		case <-ticker.C:
			if !delivered && room && next == nil && s.isQuiet(cc) {
				return true
			}
			delivered = false
			s.sizes.lookBack()
			leaving = leaving || s.isMisfit(cc)
			s.checkTopology(intake, cc, false)
		case <-cc.gone:
			return false
		case <-cc.paused:
			return false
		case <-intake.Done():
			return false
		}
	}
}

// silenceInterval is how often a subscription with several addresses declares its topology again while nothing arrives:
// a node that is cut off from its cluster looks like one that has nothing to deliver.
const silenceInterval = 5 * time.Second

// nextSelection returns what receiveDeliveries waits for: a delivery where there is room, and the handover of
// next, if there is one.
func (s *subscription) nextSelection(cc *consumerChannel, next *item, room bool) (in <-chan amqp.Delivery, out chan<- *message.Message, msg *message.Message) {
	if next != nil {
		out, msg = s.out, next.msg
	}
	if room {
		return cc.deliveries, out, msg
	}
	s.subscriber.signals.full.Send(s.topic)
	return nil, out, msg
}

// slowIntervals is how many topology intervals a topic is isolated, at most, after its last
// unreadable message. With keys it stays isolated until the message then in hand is settled.
const slowIntervals = 10

// isBlameless reports whether cc, with one message at a time for so many topology intervals, may
// end. The messages in hand when the topic was isolated have most likely been redelivered and
// read, since a queue delivers those first. That cannot be seen where messages are few or take
// long, or where the first is refused again and again. Then the number of intervals decides.
//
// With keys cc then ends between two messages, after the one in hand is settled: its channel closes
// with it, and an ack would be lost. Further messages of the broker, one at most, go back.
func (s *subscription) isBlameless(cc *consumerChannel, intervals int) bool {
	return cc.acks.countAcked() > s.subscriber.opts.Prefetch || intervals >= slowIntervals
}

// isQuiet reports whether cc may be replaced. With keys nothing may be in hand: its channel would
// go on beside the next one's. If both were lost, the order in which their messages are
// redelivered would be open. With one message at a time nothing may be in hand either: a message
// in hand keeps the broker from sending an unreadable one.
func (s *subscription) isQuiet(cc *consumerChannel) bool {
	return !s.isKeyed() && !s.single || cc.acks.countOpen() == 0
}

// checkTopology declares the topology again in the background, where a slow broker holds up no delivery. It does nothing
// while the check before is running. A brief check only asks whether the node answers: others say what is wrong, and
// what waits in the dead-letter queue, which would otherwise fill the log.
func (s *subscription) checkTopology(intake context.Context, cc *consumerChannel, brief bool) {
	if !s.checking.CompareAndSwap(false, true) {
		return
	}
	cc.conn.work.Go(func() {
		defer s.checking.Store(false)
		dead, err := s.subscriber.declareTopic(intake, cc.conn, s.topic)
		logger := s.subscriber.opts.Logger.With("topic", s.topic, "broker", brokerAddress(cc.conn.url))
		switch {
		case intake.Err() != nil || cc.isOver():
		case errors.Is(err, errTimeout):
			logger.WarnContext(intake, "rabbitmq: the broker does not answer a declaration of the topology", "error", err)
		case brief:
		case err != nil:
			logger.WarnContext(intake, "rabbitmq: topology is not as declared", "error", err)
		default:
			s.subscriber.reportDead(intake, s.topic, dead)
		}
	})
}

// takeDelivery makes d an item.
func (s *subscription) takeDelivery(work context.Context, cc *consumerChannel, d amqp.Delivery) {
	cc.acks.noteDelivery(d.DeliveryTag)
	cc.conn.noteHeard()
	it := &item{channel: cc, delivery: d}
	s.openItem(work, it)
	if s.isKeyed() {
		guard.Hook(work, s.subscriber.opts.Logger, "rabbitmq: option Key", func() { it.key = s.subscriber.opts.Key(it.msg) })
	}
	s.sizes.addSize(it.payloadSize())
	s.subscriber.signals.received.Send(s.lanes.addItem(it))
}

// openItem makes the message of it, which can be settled once.
func (s *subscription) openItem(work context.Context, it *item) {
	it.msg = s.unmarshalDelivery(it.delivery)
	ctx, end := context.WithCancel(work)
	it.msg.SetContext(ctx)
	it.end = end
}

// unmarshalDelivery returns a message in any case, even if the Marshaler of the user fails.
func (s *subscription) unmarshalDelivery(d amqp.Delivery) *message.Message {
	var msg *message.Message
	err := guard.Call(func() (err error) {
		msg, err = s.subscriber.cfg.Marshaler.Unmarshal(d)
		return err
	})
	if err != nil || msg == nil {
		msg, _ = Marshaler{}.Unmarshal(d)
	}
	return msg
}

// awaitVerdict waits until the handler has settled it and tells the broker.
func (s *subscription) awaitVerdict(intake, work context.Context, it *item) {
	defer it.channel.inHand.Done()
	defer it.channel.conn.noteHandled()
	defer it.end()
	select {
	case <-it.msg.Acked():
		it.channel.acks.collectAck(it.delivery.DeliveryTag)
	case <-it.msg.Nacked():
		s.subscriber.signals.held.Send(it.msg.UUID)
		it.channel.holdBefore(intake, s.subscriber.opts.NackDelay)
		if s.nackItem(work, it) {
			return
		}
	case <-work.Done():
		return // it goes back when its channel closes
	}
	s.lanes.finishItem(it)
}

// nackItem gives the item back to the broker. If it has a key, nackItem reports true instead: the
// item is still in hand and is handed over again from here. The broker would redeliver it behind
// the later messages of its key. If the channel were lost then, a quorum queue would even give out
// all of them in that order. After the end of the consumer channel the item goes back with the channel, which
// gives everything back in the order of its arrival.
func (s *subscription) nackItem(work context.Context, it *item) (again bool) {
	requeue := !s.subscriber.cfg.Consume.NoRequeueOnNack
	if !requeue || it.key == "" {
		it.channel.acks.sendNack(it.delivery.DeliveryTag, requeue)
		return false
	}
	next := &item{channel: it.channel, delivery: it.delivery, key: it.key}
	next.delivery.Redelivered = true
	s.openItem(work, next)
	if !s.lanes.offerAgain(next) {
		next.end()
		return false
	}
	return true
}

// giveBackItems returns the deliveries of cc that are not in hand to the broker. With keys, or if the topic is paused,
// the closing channel does that, which keeps their order. If the broker does not answer, it gets them back with the
// channel, too.
func (s *subscription) giveBackItems(cc *consumerChannel) {
	items := s.lanes.dropItems()
	for _, it := range items {
		it.end()
	}
	if s.isKeyed() || cc.isPaused() {
		return
	}
	sent, ok := cc.cancelAndDrain()
	if !ok {
		return
	}
	for _, it := range items {
		cc.acks.sendNack(it.delivery.DeliveryTag, true)
	}
	for _, tag := range sent {
		_ = cc.amqp.Nack(tag, false, true)
	}
}

func (s *subscription) isKeyed() bool { return s.subscriber.opts.Key != nil }
