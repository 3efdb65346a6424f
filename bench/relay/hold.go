package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/backoff"
)

const (
	holdRate    = 4000 // messages per second
	holdTick    = 10 * time.Millisecond
	holdCatchUp = 400 // most messages in one transaction, when the writer is late
	holdWindows = 6   // growth is the last one divided by the first
	holdWarmUp  = 2 * time.Second
)

// A held is a transaction that runs on the database at the same time.
type held string

const (
	heldNone     held = "nothing"
	heldSnapshot held = "snapshot"          // a long report
	heldXID      held = "snapshot-with-xid" // a long transaction that has also written
)

// A holdRun is one measurement. Without a goal it is for information.
type holdRun struct {
	slot  string
	held  held
	share float64 // of -hold
	goal  float64 // growth at most
}

var holdRuns = []holdRun{
	{"ours-log", heldNone, 0.25, 0},
	{"ours-log", heldSnapshot, 1, 1.2},
	{"ours-log", heldXID, 1, 1.2},
}

// measureHolds measures the relay's processor time on the database server at a constant rate. The broker is a
// stub that confirms at once, so only the database counts.
func (b *bench) measureHolds(ctx context.Context) ([]target.Target, error) {
	var targets []target.Target
	free := make(map[string]float64) // of each slot, with nothing held
	for _, run := range holdRuns {
		sub, o, err := b.openOwnSubject(ctx, b.servers[0], run.slot, "hold-"+string(run.held))
		if err != nil {
			return nil, err
		}
		if sub == nil {
			continue
		}
		length := time.Duration(run.share * float64(b.hold))
		seen, err := run.measureLag(ctx, o, length)
		if err := errors.Join(err, sub.closeSubject()); err != nil {
			if errors.Is(err, errNoSchedstat) {
				fmt.Println("hold NOT MEASURED:", errNoSchedstat)
				return nil, nil
			}
			return nil, fmt.Errorf("slot %s, holding %s: %w", run.slot, run.held, err)
		}
		fmt.Printf("hold %s, %s held for %v: %s\n", run.slot, run.held, length, seen)
		if run.held == heldNone {
			free[run.slot] = target.MedianOf(seen.windows)
		} else if base := free[run.slot]; base > 0 {
			fmt.Printf("hold %s, %s/%s %.2f\n", run.slot, run.held, heldNone, target.MedianOf(seen.windows)/base)
		}
		if run.goal > 0 {
			targets = append(targets, target.Target{
				Name: fmt.Sprintf("growth-%s-%s", run.slot, run.held), Value: seen.growthFactor(), Goal: run.goal, AtMost: true,
			})
		}
	}
	return targets, nil
}

// A sighting is the measurement of one relay.
type sighting struct {
	windows []float64 // milliseconds for 1,000 messages on the database's processors
	behind  int64     // messages, at the end
	dead    string    // tuples, by table
}

// growthFactor returns the growth of the relay's time for a message.
func (s sighting) growthFactor() float64 { return s.windows[len(s.windows)-1] / s.windows[0] }

func (s sighting) String() string {
	return fmt.Sprintf("database ms per 1,000 messages %.1f, growth %.2f; %d messages behind; dead tuples: %s",
		s.windows, s.growthFactor(), s.behind, s.dead)
}

// measureLag runs a writer and a relay for length and measures the relay.
func (run holdRun) measureLag(ctx context.Context, o *ours, length time.Duration) (seen sighting, err error) {
	m, err := openMeter(o.place)
	if err != nil {
		return seen, err
	}
	c := newCounter(unlimited)
	r, stopRelay, err := o.startRelay(ctx, counted{accepting{}, c})
	if err != nil {
		return seen, err
	}
	s := &stream{ours: o, wake: r.Wake}
	stopStream := s.startStream(ctx)
	defer func() { err = errors.Join(err, stopStream(), stopRelay()) }()
	if err := backoff.Sleep(ctx, holdWarmUp); err != nil {
		return seen, err
	}
	release, err := run.held.beginHolding(ctx, o.place)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, release()) }()
	if seen.windows, err = measureWindows(ctx, m, c, length); err != nil {
		return seen, err
	}
	seen.behind = s.written.Load() - c.count.Load()
	seen.dead, err = deadTuples(ctx, o.place)
	return seen, err
}

// measureWindows returns the relay's milliseconds for a thousand messages in
// each part of length.
func measureWindows(ctx context.Context, m *meter, c *counter, length time.Duration) ([]float64, error) {
	each := make([]float64, holdWindows)
	start := time.Now()
	before, err := m.readProcessorTime(ctx)
	if err != nil {
		return nil, err
	}
	published := c.count.Load()
	for i := range each {
		end := start.Add(length * time.Duration(i+1) / holdWindows)
		if err := backoff.Sleep(ctx, time.Until(end)); err != nil {
			return nil, err
		}
		now, err := m.readProcessorTime(ctx)
		if err != nil {
			return nil, err
		}
		n := c.count.Load()
		if n == published {
			return nil, fmt.Errorf("nothing was published in %v", length/holdWindows)
		}
		each[i] = target.Milliseconds(now-before) * 1000 / float64(n-published)
		before, published = now, n
	}
	return each, nil
}

// beginHolding opens the transaction that stays open, on a separate connection.
func (h held) beginHolding(ctx context.Context, p *place) (release func() error, err error) {
	if h == heldNone {
		return func() error { return nil }, nil
	}
	tx, err := p.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	statement := "SELECT count(*) FROM pg_class"
	if h == heldXID {
		statement = "SELECT pg_current_xact_id()"
	}
	if _, err := tx.Exec(ctx, statement); err != nil {
		return nil, errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return func() error { return tx.Rollback(context.WithoutCancel(ctx)) }, nil
}

// deadTuples lists the tables at p with dead rows that vacuum cannot remove yet.
func deadTuples(ctx context.Context, p *place) (string, error) {
	rows, _ := p.pool.Query(ctx, `SELECT relname || ' ' || n_dead_tup FROM pg_stat_user_tables
		WHERE schemaname = $1 AND n_dead_tup > 0 AND relname <> 'schema_version' ORDER BY relname`, p.schema)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if len(tables) == 0 {
		tables = []string{"none"}
	}
	return strings.Join(tables, ", "), err
}

// A stream writes messages at a constant rate.
type stream struct {
	ours    *ours
	wake    func()
	written atomic.Int64
}

// startStream writes until stop is called.
func (s *stream) startStream(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		wg    sync.WaitGroup
		fault error
	)
	wg.Go(func() { fault = s.writeStream(ctx) })
	return func() error {
		cancel()
		wg.Wait()
		return fault
	}
}

func (s *stream) writeStream(ctx context.Context) error {
	tick := time.NewTicker(holdTick)
	defer tick.Stop()
	start := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := int64(time.Since(start).Seconds()*holdRate) - s.written.Load()
		n := int(min(due, holdCatchUp))
		// ctx does not cancel the transaction, because its commit would then be unknown.
		work := context.WithoutCancel(ctx)
		err := pgx.BeginFunc(work, s.ours.pool, func(tx pgx.Tx) error { return s.ours.storeMessages(work, tx, n) })
		if err != nil {
			return err
		}
		s.wake()
		s.written.Add(int64(n))
	}
}
