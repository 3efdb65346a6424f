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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/proctime"
	"github.com/sagamill/sagamill/outbox"
)

const (
	poolSize     = 8
	storeBatch   = 100 // messages in one transaction of a backlog
	storeWriters = 4
	drainTimeout = time.Minute // of one backlog
	payloadSize  = 512
)

// payload is JSON because one of the compared relays stores it in a JSON column.
var payload = []byte(`{"pad":"` + strings.Repeat("x", payloadSize-len(`{"pad":""}`)) + `"}`)

// A relay moves messages from a table to the broker.
type relay interface {
	// storeMessages stores n messages in tx, for [relay.publishAll] to publish.
	storeMessages(ctx context.Context, tx pgx.Tx, n int) error
	// clearPublished deletes all published messages.
	clearPublished(ctx context.Context) error
	// publishAll publishes until ctx ends, and counts the broker's confirmations in c.
	publishAll(ctx context.Context, c *counter) error
	closeRelay() error
}

// A slot is a relay to compare. Slots are in the order of a round: slots that are compared follow each other.
type slot struct {
	name string
	open func(ctx context.Context, p *place) (relay, error)
}

var slots = []slot{
	{"raw", openRawRelay},
	{"ours-log", openOurRelay(outbox.RelayOptions{})},
	{"river-style", openClaims},
	{"forwarder-pool1", openForwarder(1)},
	{"forwarder-default", openForwarder(0)},
}

// A place is where a slot has its tables and its queue.
type place struct {
	name   string // a use and a slot
	server *private.Server
	schema string
	queue  *private.Queue
	pool   *pgxpool.Pool // for writers
	relays *pgxpool.Pool // for the relay, so that its sessions have their own name
}

// createPlace makes the place called name on s, with an empty schema.
func (b *bench) createPlace(ctx context.Context, s *private.Server, name string) (_ *place, err error) {
	p := &place{name: name, server: s, schema: "bench_" + strings.ReplaceAll(name, "-", "_")}
	defer func() {
		if err != nil {
			p.closePlace()
		}
	}()
	if p.queue, err = b.broker.DeclareQueue(ctx, s.Name+"."+name); err != nil {
		return nil, err
	}
	if p.pool, err = p.connectPool(ctx, "writer", poolSize); err != nil {
		return nil, err
	}
	if p.relays, err = p.connectPool(ctx, "relay", poolSize); err != nil {
		return nil, err
	}
	_, err = p.pool.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+p.schema)
	return p, err
}

// connectPool opens a pool whose sessions are named after role and place.
func (p *place) connectPool(ctx context.Context, role string, size int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(p.server.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = size
	config.ConnConfig.RuntimeParams["application_name"] = role + " " + p.name
	config.ConnConfig.RuntimeParams["search_path"] = p.schema
	return pgxpool.NewWithConfig(ctx, config)
}

func (p *place) closePlace() {
	for _, pool := range []*pgxpool.Pool{p.pool, p.relays} {
		if pool != nil {
			pool.Close()
		}
	}
}

// tendTables runs a maintenance command on every table of the place. In longer use autovacuum would do the
// same.
func (p *place) tendTables(ctx context.Context, command string) error {
	rows, _ := p.pool.Query(ctx, "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = $1", p.schema)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(tables) > 0 {
		_, err = p.pool.Exec(ctx, command+" "+strings.Join(tables, ", "))
	}
	return err
}

// A subject is a slot that is ready to be measured.
type subject struct {
	*place
	slot    string
	relay   relay
	used    proctime.Usage // by its drains
	drained int            // messages
	backlog int            // messages in one slice
}

// newSubject opens sl on s. use distinguishes its tables and queue from those of other parts.
func (b *bench) newSubject(ctx context.Context, s *private.Server, sl slot, use string) (*subject, error) {
	p, err := b.createPlace(ctx, s, use+"-"+sl.name)
	if err != nil {
		return nil, err
	}
	r, err := sl.open(ctx, p)
	if err != nil {
		p.closePlace()
		return nil, err
	}
	return &subject{place: p, slot: sl.name, relay: r}, nil
}

func (s *subject) closeSubject() error {
	defer s.place.closePlace()
	return s.relay.closeRelay()
}

// fillOutbox makes a backlog of n messages, on tables without dead rows of the previous slice and with current
// statistics for plans.
func (s *subject) fillOutbox(ctx context.Context, n int) error {
	if err := errors.Join(s.relay.clearPublished(ctx), s.queue.PurgeQueue(), s.tendTables(ctx, "VACUUM")); err != nil {
		return err
	}
	var (
		wg     sync.WaitGroup
		taken  atomic.Int64
		faults = make([]error, storeWriters)
	)
	for i := range storeWriters {
		wg.Go(func() {
			for faults[i] == nil {
				first := int(taken.Add(storeBatch)) - storeBatch
				if first >= n {
					return
				}
				faults[i] = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
					return s.relay.storeMessages(ctx, tx, min(storeBatch, n-first))
				})
			}
		})
	}
	wg.Wait()
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return s.tendTables(ctx, "ANALYZE")
}

// drainOutbox stores n messages and returns how long it took from the relay's start
// until the broker had confirmed all of them.
func (s *subject) drainOutbox(ctx context.Context, n int) (took time.Duration, err error) {
	if err := s.fillOutbox(ctx, n); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	work, stop := context.WithCancel(ctx)
	defer stop()
	var (
		wg    sync.WaitGroup
		fault error
		c     = newCounter(n)
		used  = proctime.ReadUsage()
		start = time.Now()
	)
	wg.Go(func() {
		defer stop() // the drain is over
		fault = s.relay.publishAll(work, c)
	})
	err = c.waitUntilAll(work)
	took = time.Since(start)
	s.used, s.drained = s.used.AddUsage(proctime.ReadUsage().UsedSince(used)), s.drained+n
	stop()
	wg.Wait()
	if err := errors.Join(fault, err); err != nil {
		return 0, err
	}
	return took, s.queue.CheckDepth(ctx, n)
}
