package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	dbosInFlight = 256
	dbosConns    = 48 // of its system database; with its default of 20 the slow server has less to do
	dbosOwn      = 32 // for the business rows
	dbosEnd      = 10 * time.Second
)

// A durable is the saga as a workflow of DBOS. Each step commits its row, and then DBOS commits the step's
// result. If the process dies in between, the step runs again, so its insert must tolerate that.
type durable struct {
	*place
	conns int
	dbos  dbos.DBOSContext
	pool  *pgxpool.Pool
	await sync.WaitGroup // goroutines that wait for a workflow's end
	done  func(string)   // of the slice
	fail  func(error)
}

func openDurable(conns int) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (_ way, err error) {
		d := &durable{place: p, conns: conns}
		var schemas []string
		for _, service := range services {
			schemas = append(schemas, p.schemaName(service))
		}
		if d.pool, err = p.connectPool(ctx, dbosOwn, schemas...); err != nil {
			return nil, err
		}
		system, err := p.connectPool(ctx, conns, d.systemSchema())
		if err == nil {
			d.dbos, err = dbos.NewDBOSContext(ctx, dbos.Config{
				AppName: "saga", SystemDBPool: system, DatabaseSchema: d.systemSchema(), ApplicationVersion: "1", Logger: slog.New(slog.DiscardHandler),
			})
		}
		if err == nil {
			dbos.RegisterWorkflow(d.dbos, d.runWorkflow)
			err = dbos.Launch(d.dbos)
		}
		if err != nil {
			return nil, errors.Join(err, d.closeWay())
		}
		return d, nil
	}
}

// systemSchema is the schema with the workflows.
func (d *durable) systemSchema() string { return d.schemaName("dbos") }

func (d *durable) closeWay() error {
	d.await.Wait()
	if d.dbos != nil {
		dbos.Shutdown(d.dbos, dbosEnd) // this closes its pool too
	}
	d.pool.Close()
	return nil
}

func (d *durable) clearSagas(ctx context.Context) error {
	_, err := d.all.Exec(ctx, "TRUNCATE "+d.systemSchema()+".workflow_status CASCADE") // the other tables refer to it
	return errors.Join(err, d.truncateTables(ctx))
}

func (d *durable) checkEffects(ctx context.Context, n int) error {
	return d.place.checkCounts(ctx, n, count{d.systemSchema() + ".workflow_status WHERE status = 'SUCCESS'", n}, count{d.systemSchema() + ".operation_outputs", n * len(steps)})
}

// runServices only keeps done and fail: workflows run in the process that starts them.
func (d *durable) runServices(_ context.Context, done func(string), fail func(error)) (func() error, error) {
	d.done, d.fail = done, fail
	return func() error {
		d.await.Wait()
		return nil
	}, nil
}

// runWorkflow is the workflow.
func (d *durable) runWorkflow(ctx dbos.DBOSContext, o order) (string, error) {
	for _, st := range steps {
		_, err := dbos.RunAsStep(ctx, func(ctx context.Context) (string, error) {
			_, err := d.pool.Exec(ctx, st.effect.sql+" ON CONFLICT DO NOTHING", st.effect.values(&o)...)
			return "", err
		}, dbos.WithStepName(st.name))
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// startSaga places the order, and then begins the workflow under its id. If the process dies in between, the
// client repeats the request.
func (d *durable) startSaga(ctx context.Context, o *order) error {
	if _, err := d.pool.Exec(ctx, placement.sql+" ON CONFLICT DO NOTHING", placement.values(o)...); err != nil {
		return err
	}
	handle, err := dbos.RunWorkflow(d.dbos, d.runWorkflow, *o, dbos.WithWorkflowID(o.OrderID))
	if err != nil {
		return err
	}
	done, fail := d.done, d.fail
	d.await.Go(func() {
		if _, err := handle.GetResult(); err != nil {
			fail(err)
			return
		}
		done(o.OrderID)
	})
	return nil
}

func (d *durable) String() string {
	return fmt.Sprintf("DBOS Transact, a workflow of three steps, connections of its own %d, for the rows %d", d.conns, dbosOwn)
}
