package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/proctime"
	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	latencyLoad   = 0.5 // of the capacity
	latencyLength = 1.5 // slices
	latencyWarm   = 0.1 // share of the samples that does not count
	p99Goal       = 50  // milliseconds
)

// latencies measures the time from a message's publishing to its ack, which follows the commit. The rate is
// constant, even if the consumer is slow, and a message's clock starts when it is due, not when it is sent. The
// alternating slices of raw show the time of the broker, the publisher and the machine alone.
func (b *bench) latencies(ctx context.Context) (targets []target.Target, err error) {
	for i, s := range b.servers {
		p99, err := b.measureLatency(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", s.Name, err)
		}
		if i == 0 {
			targets = append(targets, target.Target{Name: "consumer-p99-ms", Value: p99, Goal: p99Goal, AtMost: true})
		}
	}
	return targets, nil
}

// measureLatency returns the median of the rounds' p99 in milliseconds.
func (b *bench) measureLatency(ctx context.Context, s *private.Server) (float64, error) {
	subjects, err := b.newSubjects(ctx, s, "latency", kindRaw, kindBatch)
	if err != nil {
		return 0, err
	}
	defer closeSubjects(subjects)
	control, sub := subjects[0], subjects[1]
	capacity, err := sub.measureCapacity(ctx, b.slice)
	if err != nil {
		return 0, err
	}
	rate := capacity * latencyLoad
	n := int(rate * latencyLength * b.slice.Seconds())
	var p99s []float64
	for range b.rounds {
		alone, err := control.runPaced(ctx, rate, n)
		if err != nil {
			return 0, err
		}
		clock, err := sub.runPaced(ctx, rate, n)
		if err != nil {
			return 0, err
		}
		fmt.Printf("latency %-6s %s at %.0f msg/s, half of its capacity: until acked %s; delivered %s; sent %s; raw delivered %s\n",
			s.Name, sub.name, rate, formatSpread(clock.acked), formatSpread(clock.delivered), formatSpread(clock.sent), formatSpread(alone.delivered))
		fmt.Printf("latency %-6s %s, its publisher included: %s\n", s.Name, sub.name, clock.used.FormatEach(n))
		p99s = append(p99s, target.Milliseconds(target.Percentile(steadyPart(clock.acked), 0.99)))
	}
	return target.MedianOf(p99s), nil
}

// measureCapacity returns the rate at which the subject works off a backlog.
func (s *subject) measureCapacity(ctx context.Context, slice time.Duration) (rate float64, err error) {
	for range 2 { // the first warms up
		o, err := s.drainQueue(ctx, s.backlog, true)
		if err != nil {
			return 0, err
		}
		rate = o.messageRate()
		s.sizeNextSlice(rate, slice)
	}
	return rate, nil
}

// steadyPart returns the samples without the first moments.
func steadyPart(took []time.Duration) []time.Duration {
	return took[int(latencyWarm*float64(len(took))):]
}

func formatSpread(took []time.Duration) string {
	at := func(p float64) float64 { return target.Milliseconds(target.Percentile(steadyPart(took), p)) }
	return fmt.Sprintf("p50 %.1f, p99 %.1f, worst %.1f ms", at(0.5), at(0.99), at(1))
}

// A timedWay is a way of consuming that can note when each message was delivered and acked.
type timedWay interface{ timeMessages(clock *stopwatch) }

var _, _ timedWay = (*raw)(nil), (*ours)(nil) // the ways that measureLatency compares

// runPaced publishes n messages at a rate while the subject consumes, and returns their times.
func (s *subject) runPaced(ctx context.Context, rate float64, n int) (*stopwatch, error) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := s.prepareSlice(ctx, 0, true); err != nil {
		return nil, err
	}
	clock := &stopwatch{due: make(map[string]time.Time, n)}
	s.way.(timedWay).timeMessages(clock)
	seen, used := newProgress(n), proctime.ReadUsage()
	r, err := s.way.startConsuming(ctx, seen)
	if err != nil {
		return nil, err
	}
	err = s.publishAt(ctx, rate, n, clock)
	if err == nil {
		err = seen.waitUntilDone(ctx, r.failed)
	}
	if err == nil && !s.isCeiling() {
		err = s.committed(ctx, n)
	}
	if err := errors.Join(err, r.stop()); err != nil {
		return nil, err
	}
	clock.watching.Wait()
	clock.used = proctime.ReadUsage().UsedSince(used)
	return clock, s.verifyEffects(ctx, n)
}

// publishAt publishes n messages evenly spaced. When it is late it publishes all due messages at once.
func (s *subject) publishAt(ctx context.Context, rate float64, n int, clock *stopwatch) error {
	conn, err := s.queue.Broker.DialConnection()
	if err != nil {
		return err
	}
	defer func() { _ = private.CloseConnection(conn) }()
	sender, err := private.NewSender(conn, s.queue.Topic)
	if err != nil {
		return err
	}
	defer sender.Close()
	sent := make([]*amqp.DeferredConfirmation, n)
	start := time.Now()
	for i := range sent {
		p, err := publishing(s.queue.Topic)
		if err != nil {
			return err
		}
		due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		clock.startMessage(p.MessageId, due)
		time.Sleep(time.Until(due))
		if sent[i], err = sender.Publish(ctx, p); err != nil {
			return err
		}
		clock.noteElapsed(&clock.sent, p.MessageId)
	}
	for _, c := range sent {
		if err := sender.AwaitConfirm(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// A stopwatch measures each message's time from when it was due.
type stopwatch struct {
	mu       sync.Mutex
	due      map[string]time.Time // by message id
	watching sync.WaitGroup

	sent, delivered, acked []time.Duration // in the order of the events
	used                   proctime.Usage  // by all
}

func (w *stopwatch) startMessage(id string, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due[id] = due
}

// noteElapsed adds the message's time until now to what.
func (w *stopwatch) noteElapsed(what *[]time.Duration, id string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	*what = append(*what, now.Sub(w.due[id]))
}

// A watched is a subscriber that reports its acks. It keeps the optional interfaces that the consumer may use.
type watched struct {
	*rabbitmq.Subscriber
	clock *stopwatch
}

func (s *watched) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	s.clock.watching.Go(func() {
		defer close(out)
		for msg := range messages {
			s.clock.noteElapsed(&s.clock.delivered, msg.UUID)
			s.clock.watching.Go(func() {
				select {
				case <-msg.Acked():
					s.clock.noteElapsed(&s.clock.acked, msg.UUID)
				case <-msg.Nacked():
				}
			})
			out <- msg
		}
	})
	return out, nil
}
