package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/proctime"
	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/outbox"
)

const (
	stallEachKey = 2                // held messages of one ordering key
	stallBefore  = 100              // messages that stall while nearly nothing is held
	stallWarmUp  = 5 * time.Second  // until they are held
	stallSamples = 20 * time.Second // of another topic, beside held messages
	stallDrain   = 30 * time.Second // of the stalled topic, at most
	stallEvery   = 20 * time.Millisecond
	stallLimit   = 5 * time.Minute // for one message
	stallSince   = "5 minutes"     // for so long the topic has stalled when its messages are held

	besideGoal = 1000 // milliseconds from the commit of another topic's message to its confirmation
	drainGoal  = 2500 // messages of the stalled topic in a second
)

// A gate is a publisher that lets a topic wait while it is shut, as a queue without a leader does.
type gate struct {
	outbox.Publisher
	stalled string       // the topic
	passed  atomic.Int64 // messages of it
	others  sync.Map     // by key of a message of another topic: a channel for the time of its confirmation

	mu     sync.Mutex
	opened chan struct{} // closed while the gate is open
}

func newGate(pub outbox.Publisher, topic string) *gate {
	return &gate{Publisher: pub, stalled: topic, opened: make(chan struct{})}
}

func (g *gate) open() { close(g.state()) }

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened = make(chan struct{})
}

func (g *gate) state() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

func (g *gate) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	stalled := batch[0].Topic == g.stalled
	if stalled {
		select {
		case <-g.state():
		case <-ctx.Done(): // the publisher returns at once
		}
	}
	results := g.Publisher.PublishBatch(ctx, batch)
	now := time.Now()
	for i, err := range results {
		switch {
		case err != nil:
		case stalled:
			g.passed.Add(1)
		default:
			if confirmed, waits := g.others.LoadAndDelete(batch[i].Message.Metadata[outbox.HeaderKey]); waits {
				confirmed.(chan time.Time) <- now
			}
		}
	}
	return results
}

// A stall is a topic with held messages, and another one beside it.
type stall struct {
	*ours
	gate   *gate
	beside string // the other topic
	hold   int    // messages to be held
	held   int64  // messages of the stalled topic in all
	wake   func() // the relay
	stop   func() error
}

// measureStalls measures what a stalled topic with many held messages costs another topic, and how fast the messages
// are published when the queue is back. It measures a relay whose statements were planned while nothing was held, and
// then one that has just started. No statistics are collected.
func (b *bench) measureStalls(ctx context.Context) (targets []target.Target, err error) {
	sub, o, err := b.openOwnSubject(ctx, b.servers[0], "ours-log", "stall")
	if err != nil || sub == nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sub.closeSubject()) }()
	beside, err := b.broker.DeclareQueue(ctx, o.queue.Topic+".beside")
	if err != nil {
		return nil, err
	}
	s := &stall{ours: o, gate: newGate(o.publisher, o.queue.Topic), beside: beside.Topic, hold: b.held}
	s.stop = func() error { return nil }
	defer func() { err = errors.Join(err, s.stop()) }()
	for _, do := range []func(context.Context) error{s.withoutStatistics, s.startFresh, s.beginStall, s.holdMany} {
		if err := do(ctx); err != nil {
			return nil, err
		}
	}
	if targets, err = s.measureRelay(ctx, "planned-empty"); err != nil {
		return nil, err
	}
	s.gate.shut()
	if err := s.stop(); err != nil {
		return nil, err
	}
	if err := s.startFresh(ctx); err != nil {
		return nil, err
	}
	more, err := s.measureRelay(ctx, "started")
	return append(targets, more...), err
}

// withoutStatistics keeps the server from collecting statistics of the tables.
func (s *stall) withoutStatistics(ctx context.Context) error {
	for _, table := range []string{"outbox_held", "outbox_0", "outbox_1", "outbox_2", "outbox_other"} {
		if _, err := s.pool.Exec(ctx, "ALTER TABLE "+table+" SET (autovacuum_enabled = off)"); err != nil {
			return err
		}
	}
	return nil
}

// startFresh starts a relay that knows of no stall.
func (s *stall) startFresh(ctx context.Context) error {
	r, stop, err := s.startRelay(ctx, s.gate)
	if err == nil {
		s.wake, s.stop = r.Wake, stop
	}
	return err
}

// beginStall lets the relay send each of its statements while nearly nothing is held.
func (s *stall) beginStall(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return s.storeMessages(ctx, tx, stallBefore) })
	if err != nil {
		return err
	}
	s.held += stallBefore
	s.wake()
	_, err = s.sampleBeside(ctx, stallWarmUp)
	return err
}

// sqlHoldMany stores $1 messages of the topic $2, which has stalled for $5. The first one of each key waits for the
// topic, and the others of the key wait for that one. As the relay does, it makes each first one due half a minute after
// it was kept aside.
const sqlHoldMany = `
INSERT INTO outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id,
	content_type, payload, state, due_at, reason)
SELECT nextval('outbox_id_seq'), gen_random_uuid(), $2, $2, 'bench', key, 'reserve', '', E'bench\x1f' || key,
	gen_random_uuid()::text, '', 'application/json', $4, 'waiting',
	CASE WHEN first THEN clock_timestamp() + interval '30 s' - age ELSE 'infinity' END,
	CASE WHEN first THEN 'nacked' ELSE '' END
FROM (
	SELECT 'held-' || i % $3::int AS key, i < $3::int AS first, (1 - i::float8 / $3::int) * $5::interval AS age
	FROM generate_series(0, $1::int - 1) i) m`

func (s *stall) holdMany(ctx context.Context) error {
	began, keys := time.Now(), s.hold/stallEachKey
	if _, err := s.pool.Exec(ctx, sqlHoldMany, s.hold, s.queue.Topic, keys, payload, stallSince); err != nil {
		return err
	}
	s.held += int64(s.hold)
	fmt.Printf("stall %d messages of %d keys are held after %v\n", s.hold, keys, time.Since(began).Round(time.Second))
	return nil
}

// measureRelay measures the other topic while the stalled one is held, and both when its queue is back.
func (s *stall) measureRelay(ctx context.Context, relay string) ([]target.Target, error) {
	took, err := s.sampleBeside(ctx, stallSamples)
	if err != nil {
		return nil, err
	}
	targets := []target.Target{describeBeside(relay, "held", took)}
	s.gate.open()
	used, before, start := proctime.ReadUsage(), s.gate.passed.Load(), time.Now()
	if took, err = s.sampleBeside(ctx, stallDrain); err != nil {
		return nil, err
	}
	n, elapsed := s.gate.passed.Load()-before, time.Since(start)
	if n == 0 {
		return nil, errors.New("no message of the stalled topic was published")
	}
	rate := float64(n) / elapsed.Seconds()
	fmt.Printf("stall %-13s drains %d of %d messages in %v, %.0f msg/s, %s\n",
		relay, n, s.held-before, elapsed.Round(time.Second), rate, proctime.ReadUsage().UsedSince(used).FormatEach(int(n)))
	return append(targets, describeBeside(relay, "drains", took),
		target.Target{Name: "stall-" + relay + "-drain-msg/s", Value: rate, Goal: drainGoal}), nil
}

func describeBeside(relay, during string, took []time.Duration) target.Target {
	p50, p99 := target.Milliseconds(target.Percentile(took, 0.5)), target.Milliseconds(target.Percentile(took, 0.99))
	fmt.Printf("stall %-13s %-6s another topic, %d messages: p50 %.0f ms, p99 %.0f ms, worst %.0f ms\n",
		relay, during, len(took), p50, p99, target.Milliseconds(target.Percentile(took, 1)))
	return target.Target{Name: "stall-" + relay + "-" + during + "-p99-ms", Value: p99, Goal: besideGoal, AtMost: true}
}

// sampleBeside commits messages of the other topic at fixed times, until length is over or nothing of the stalled topic
// is left. It returns how long each message took from its commit until the broker had confirmed it.
func (s *stall) sampleBeside(ctx context.Context, length time.Duration) ([]time.Duration, error) {
	var (
		wg     sync.WaitGroup
		took   = make([]time.Duration, int(length/stallEvery))
		faults = make([]error, len(took))
		start  = time.Now()
	)
	for i := range took {
		if s.held > 0 && s.gate.passed.Load() >= s.held {
			took, faults = took[:i], faults[:i]
			break
		}
		if faults[i] = backoff.Sleep(ctx, time.Until(start.Add(time.Duration(i)*stallEvery))); faults[i] != nil {
			break
		}
		wg.Go(func() { took[i], faults[i] = s.sampleOne(ctx) })
	}
	wg.Wait()
	return took, errors.Join(faults...)
}

// sampleOne commits a message of the other topic and waits until it is confirmed.
func (s *stall) sampleOne(ctx context.Context) (time.Duration, error) {
	message := s.outboxMessage(fmt.Sprintf("beside-%d", order.Add(1)))
	message.Topic = s.beside
	confirmed, key := make(chan time.Time, 1), message.Key+":"+message.Step
	s.gate.others.Store(key, confirmed)
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return s.writer.Write(ctx, tx, message) })
	if err != nil {
		return 0, err
	}
	committed := time.Now()
	s.wake()
	late := time.NewTimer(stallLimit)
	defer late.Stop()
	select {
	case at := <-confirmed:
		return max(0, at.Sub(committed)), nil
	case <-late.C:
		return 0, fmt.Errorf("message %s is not confirmed after %v", key, stallLimit)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
