package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/trips"
)

const tellEvery = 5 * time.Millisecond

// A desk is the shared state of a worker's job.
type desk struct {
	job
	start chan struct{} // closed when work begins
	done  atomic.Int64  // messages
	count trips.Counter
	lines *json.Encoder // guarded by saying
	say   sync.Mutex
}

// serveJob does the job in text until standard input ends.
func serveJob(ctx context.Context, text string) error {
	d := &desk{start: make(chan struct{}), lines: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(text), &d.job); err != nil {
		return err
	}
	do, ok := map[string]func(*desk, context.Context) error{"consume": (*desk).runConsumer, "relay": (*desk).runRelay, "serve": (*desk).runServices}[d.Role]
	if !ok {
		return fmt.Errorf("there is no role %q", d.Role)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var telling sync.WaitGroup
	go func() { // ends with standard input, which ends with our parent
		in := bufio.NewScanner(os.Stdin)
		if in.Scan() {
			close(d.start)
		}
		in.Scan()
		cancel()
	}()
	telling.Go(func() { d.tellDone(ctx) })
	err := do(d, ctx)
	if ctx.Err() == nil {
		err = errors.Join(errors.New("the work ended before standard input"), err)
	}
	cancel()
	telling.Wait()
	d.sendReport(report{Trips: int(d.count.Trips.Load())})
	return err
}

// tellDone reports the number of messages done, every tellEvery.
func (d *desk) tellDone(ctx context.Context) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if n := d.done.Swap(0); n > 0 {
			d.sendReport(report{Done: int(n)})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (d *desk) sendReport(r report) {
	d.say.Lock()
	defer d.say.Unlock()
	_ = d.lines.Encode(r) // ignored: without a reader, standard input ends too
}

// reportReady reports that all is connected, and waits until work begins.
func (d *desk) reportReady(ctx context.Context) error {
	d.sendReport(report{Ready: true})
	select {
	case <-d.start:
		d.count.Trips.Store(0) // earlier trips belong to no message
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connectPool opens all connections of a pool, whose round trips are counted.
func (d *desk) connectPool(ctx context.Context, schema string, conns int) (*pgxpool.Pool, error) {
	config, err := poolConfig(d.Database, schema, conns)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.AfterNetConnect = d.count.CountConn
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	var held []*pgxpool.Conn
	for range conns {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		conn.Release()
	}
	return pool, nil
}
