package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/operator"
)

const (
	sampleTimeout = time.Minute
	samplePause   = 20 * time.Millisecond
)

// A sample is a real saga whose rows are copied.
type sample struct {
	kind   string
	course course
	until  string // condition on the saga s: it is as it should be
	paused bool   // a person pauses it then
	key    string
}

const (
	sqlHasRetrying = `EXISTS (SELECT FROM shop.parked p WHERE p.key = s.key AND p.state = 'retrying')`
	sqlHasDead     = `EXISTS (SELECT FROM shop.parked p WHERE p.key = s.key AND p.state = 'dead')`
)

func newSamples() []*sample {
	return []*sample{
		{kind: "done", course: courseDone, until: `s.status = 'completed'`},
		{kind: "rejected", course: courseRejected, until: `s.status = 'compensated'`},
		{kind: "failing", course: courseFailing, until: sqlHasRetrying},
		{kind: "parked", course: courseParked, until: sqlHasDead + ` AND s.status = 'running' AND s.reason <> ''`},
		{kind: "stuck", course: courseStuck, until: sqlHasDead + ` AND s.status = 'stuck'`},
		{kind: "undoing", course: courseUndoing, until: sqlHasRetrying + ` AND s.status = 'compensating'`},
		{kind: "paused", course: courseFailing, until: sqlHasRetrying, paused: true},
	}
}

// makeSamples runs the service until each sample is as it should be. So the rows are those that the product writes.
func makeSamples(ctx context.Context, pool *pgxpool.Pool, j job) (all []*sample, err error) {
	shop, starter, err := newShop(j.Database, j.Broker)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- shop.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	for shop.CheckReady(ctx) != nil {
		if err := backoff.Sleep(ctx, samplePause); err != nil {
			return nil, err
		}
	}
	if _, err := pool.Exec(ctx, sqlCreateEffects); err != nil {
		return nil, err
	}
	all = newSamples()
	for _, s := range all {
		o := newOrder(s.course)
		s.key = o.OrderID
		if err := startOrder(ctx, shop, starter, o); err != nil {
			return nil, err
		}
	}
	for _, s := range all {
		if err := awaitSample(ctx, pool, s); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func awaitSample(ctx context.Context, pool *pgxpool.Pool, s *sample) error {
	if err := awaitTrue(ctx, pool, s.until, s.key); err != nil {
		return fmt.Errorf("sample %s: %w", s.kind, err)
	}
	if !s.paused {
		return nil
	}
	n, err := operator.NewInstances(pool, &operator.Options{Schema: schema, By: "bench", Why: "a sample"})
	if err == nil {
		_, err = n.Decide(ctx, operator.Address{Scope: scope, Key: s.key}, operator.Decision{Verb: operator.VerbPause})
	}
	if err == nil {
		err = awaitTrue(ctx, pool, "s.status = 'paused'", s.key)
	}
	if err != nil {
		return fmt.Errorf("sample %s: %w", s.kind, err)
	}
	return nil
}

// awaitTrue waits until a condition on the saga s of a key is true.
func awaitTrue(ctx context.Context, pool *pgxpool.Pool, condition, key string) error {
	for {
		var is bool
		if err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM shop.saga s WHERE s.key = $1 AND "+condition+")", key).Scan(&is); err != nil || is {
			return err
		}
		if err := backoff.Sleep(ctx, samplePause); err != nil {
			return fmt.Errorf("the saga does not get there: %w", err)
		}
	}
}
