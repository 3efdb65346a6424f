package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	riverConns    = 110
	riverWorkers  = 100
	riverCooldown = time.Millisecond // between fetches; with River's default of 100 ms a saga takes at least that for each step
	riverEnd      = 10 * time.Second
)

// A chained is the saga as jobs of River on the same server. Each job inserts the next one. As River's documents
// advise, a job's writes and its completion are one transaction. River runs only during a slice, because it polls.
type chained struct {
	*place
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx] // of the slice
}

// stepArgs are the arguments of a job.
type stepArgs struct {
	Step  int   `json:"step"`
	Order order `json:"order"`
}

func (stepArgs) Kind() string { return "step" }

func openChained(ctx context.Context, p *place) (_ way, err error) {
	c := &chained{place: p}
	if _, err := p.all.Exec(ctx, "CREATE SCHEMA "+c.riverSchema()); err != nil {
		return nil, err
	}
	schemas := []string{c.riverSchema()}
	for _, service := range services {
		schemas = append(schemas, p.schemaName(service))
	}
	if c.pool, err = p.connectWholePool(ctx, riverConns, schemas...); err != nil {
		return nil, err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(c.pool), &rivermigrate.Config{Schema: c.riverSchema(), Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		return nil, errors.Join(err, c.closeWay())
	}
	return c, nil
}

// riverSchema is the schema with the jobs.
func (c *chained) riverSchema() string { return c.schemaName("river") }

func (c *chained) closeWay() error {
	c.pool.Close()
	return nil
}

func (c *chained) clearSagas(ctx context.Context) error {
	_, err := c.all.Exec(ctx, "TRUNCATE "+c.riverSchema()+".river_job CASCADE")
	return errors.Join(err, c.truncateTables(ctx))
}

func (c *chained) checkEffects(ctx context.Context, n int) error {
	jobs := c.riverSchema() + ".river_job"
	return c.place.checkCounts(ctx, n, count{jobs + " WHERE state = 'completed'", n * len(steps)}, count{jobs, n * len(steps)})
}

func (c *chained) runServices(ctx context.Context, done func(string), fail func(error)) (func() error, error) {
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &stepWorker{chained: c, done: done, fail: fail}); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(c.pool), &river.Config{
		Schema: c.riverSchema(), Workers: workers, FetchCooldown: riverCooldown, Logger: slog.New(slog.DiscardHandler),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
	})
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	c.client = client
	return func() error {
		ctx, cancel := context.WithTimeout(ctx, riverEnd)
		defer cancel()
		return client.Stop(ctx)
	}, nil
}

// A stepWorker executes the jobs.
type stepWorker struct {
	river.WorkerDefaults[stepArgs]
	*chained
	done func(string)
	fail func(error)
}

// Work executes one step in one transaction.
func (w *stepWorker) Work(ctx context.Context, job *river.Job[stepArgs]) error {
	st, o := steps[job.Args.Step], &job.Args.Order
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, st.effect.sql, st.effect.values(o)...); err != nil {
			return err
		}
		if st.follows != "" {
			if _, err := w.client.InsertTx(ctx, tx, stepArgs{Step: job.Args.Step + 1, Order: *o}, nil); err != nil {
				return err
			}
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	switch {
	case err != nil:
		w.fail(err)
	case st.follows == "":
		w.done(o.OrderID)
	}
	return err
}

// startSaga places the order and inserts the first job.
func (c *chained) startSaga(ctx context.Context, o *order) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, placement.sql, placement.values(o)...); err != nil {
			return err
		}
		_, err := c.client.InsertTx(ctx, tx, stepArgs{Order: *o}, nil)
		return err
	})
}

func (c *chained) String() string {
	return fmt.Sprintf("River, three chained jobs, each one transaction with its completion, workers %d, connections %d, pause between fetches %v", riverWorkers, riverConns, riverCooldown)
}
