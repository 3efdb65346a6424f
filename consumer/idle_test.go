package consumer

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// asked is what is asked of a database.
type asked []string

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	*a = append(*a, q.SQL)
	return ctx
}

func (a *asked) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	*a = append(*a, data.Batch.QueuedQueries[data.Batch.Len()-1].SQL)
	return ctx
}

func (a *asked) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (a *asked) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (a *asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A consumer of many steps that has nothing to do asks the database one question at
// a time, and takes what is due of each step all the same.
func TestAnIdleConsumerAsksOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	var a asked
	config.ConnConfig.Tracer = &a
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	step, other, third := f.step(f.effect("paid"), nil), f.step(nil, nil), f.step(nil, nil)
	other.Name, other.Action = "ship", On("ship", f.effect("shipped"))
	third.Name, third.Action = "bill", On("bill", f.effect("billed"))
	c := f.consumerOn(t, pool, Options{}, step, other, third)
	w := &workerPool{free: c.opts.ParkedWorkers, running: map[string]int{}}

	for range 3 {
		if rows, _, err := c.retrier.takeDueMessages(t.Context(), w); len(rows) > 0 || err != nil {
			t.Fatalf("takeDue = %d rows, %v", len(rows), err)
		}
	}
	if len(a) != 3 {
		t.Errorf("three looks asked %d questions", len(a))
	}
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, attempts, due_at)
SELECT 'retrying', 'action', 'tenant', s, s, '', s, s::bytea, '{}', '{}', '', 'failed', '', 1, clock_timestamp() FROM unnest('{ship,bill}'::text[]) s`)
	rows, _, err := c.retrier.takeDueMessages(t.Context(), w)
	if len(rows) != 2 || err != nil {
		t.Errorf("takeDue = %d rows, %v; want one of each step that has one", len(rows), err)
	}
}
