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
	dbosConns      = 48 // of its system database; with its default of 20 the slow server has less to do
	dbosOwn        = 32 // for the business rows
	dbosConnsOfAll = 64 // of the one pool for both
	dbosEnd        = 10 * time.Second
)

// A durability is how a workflow of DBOS makes a step's row durable.
type durability string

const (
	// byStep commits the row, and then DBOS commits the step's result. If the process dies in between, the step
	// runs again, so its insert must tolerate that.
	byStep durability = "RunAsStep, two commits for each step"
	// byTransaction commits the row and the step's result together. DBOS does so if it has the same pool for its
	// own tables and for the rows.
	byTransaction durability = "RunAsTransaction on DBOS's own pool, one commit for each step"
)

// A durable is the saga as a workflow of DBOS. DBOS runs only during a slice, because it polls.
type durable struct {
	*place
	by     durability
	dbos   dbos.Context
	source *dbos.DataSource
	pool   *pgxpool.Pool  // for the business rows
	await  sync.WaitGroup // goroutines that wait for a workflow's end
	done   func(string)   // of the slice
	fail   func(error)
}

func openDurable(by durability) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (way, error) {
		d := &durable{place: p, by: by}
		err := d.launchDBOS(ctx) // this creates its tables
		return d, errors.Join(err, d.shutDownDBOS())
	}
}

// launchDBOS opens the pools with all their connections, and launches DBOS on them.
func (d *durable) launchDBOS(ctx context.Context) (err error) {
	schemas := []string{d.systemSchema()}
	for _, service := range services {
		schemas = append(schemas, d.schemaName(service))
	}
	conns, system := dbosOwn, dbosConns
	if d.by == byTransaction {
		conns = dbosConnsOfAll
	}
	if d.pool, err = d.connectWholePool(ctx, conns, schemas...); err != nil {
		return err
	}
	systemPool := d.pool
	if d.by == byStep {
		if systemPool, err = d.connectWholePool(ctx, system, schemas...); err != nil {
			return err
		}
	}
	d.dbos, err = dbos.NewContext(ctx, dbos.Config{
		AppName: "saga", SystemDBPool: systemPool, DatabaseSchema: d.systemSchema(), ApplicationVersion: "1", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if d.by == byTransaction {
		if d.source, err = dbos.NewDataSource(d.dbos, d.pool); err != nil {
			return err
		}
	}
	dbos.RegisterWorkflow(d.dbos, d.runWorkflow)
	return dbos.Launch(d.dbos)
}

// shutDownDBOS ends DBOS, which closes its pool.
func (d *durable) shutDownDBOS() (err error) {
	if d.dbos != nil {
		err = dbos.Shutdown(d.dbos, dbosEnd)
	}
	if d.pool != nil {
		d.pool.Close()
	}
	d.dbos, d.pool = nil, nil
	return err
}

// systemSchema is the schema with the workflows.
func (d *durable) systemSchema() string { return d.schemaName("dbos") }

func (d *durable) closeWay() error { return d.shutDownDBOS() }

func (d *durable) clearSagas(ctx context.Context) error {
	for _, table := range []string{"workflow_status", "operation_outputs", "workflow_input", "workflow_output"} {
		if _, err := d.all.Exec(ctx, "TRUNCATE "+d.systemSchema()+"."+table+" CASCADE"); err != nil { // others refer to it
			return err
		}
	}
	return d.truncateTables(ctx)
}

func (d *durable) checkEffects(ctx context.Context, n int) error {
	return d.place.checkCounts(ctx, n, count{d.systemSchema() + ".workflow_status WHERE status = 'SUCCESS'", n}, count{d.systemSchema() + ".operation_outputs", n * len(steps)})
}

// runServices runs DBOS: workflows run in the process that starts them.
func (d *durable) runServices(ctx context.Context, done func(string), fail func(error)) (func() error, error) {
	d.done, d.fail = done, fail
	if err := d.launchDBOS(context.WithoutCancel(ctx)); err != nil {
		return nil, errors.Join(err, d.shutDownDBOS())
	}
	return func() error {
		d.await.Wait()
		return d.shutDownDBOS()
	}, nil
}

// runWorkflow is the workflow.
func (d *durable) runWorkflow(ctx dbos.Context, o order) (string, error) {
	for _, st := range steps {
		if err := d.runStep(ctx, st, &o); err != nil {
			return "", err
		}
	}
	return "", nil
}

func (d *durable) runStep(ctx dbos.Context, st step, o *order) (err error) {
	if d.by == byTransaction {
		_, err = dbos.RunAsTransaction(ctx, d.source, func(ctx context.Context, tx dbos.Tx) (string, error) {
			_, err := tx.Exec(ctx, st.effect.sql, st.effect.values(o)...)
			return "", err
		}, dbos.WithStepName(st.name))
		return err
	}
	_, err = dbos.RunAsStep(ctx, func(ctx context.Context) (string, error) {
		_, err := d.pool.Exec(ctx, st.effect.sql+" ON CONFLICT DO NOTHING", st.effect.values(o)...)
		return "", err
	}, dbos.WithStepName(st.name))
	return err
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
	if d.by == byTransaction {
		return fmt.Sprintf("DBOS Transact, a workflow of three steps with %s, connections %d", d.by, dbosConnsOfAll)
	}
	return fmt.Sprintf("DBOS Transact, a workflow of three steps with %s, connections of its own %d, for the rows %d", d.by, dbosConns, dbosOwn)
}
