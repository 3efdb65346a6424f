package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/private"
)

const (
	poolSize    = 20                   // what a Service asks for
	commitPause = 2 * time.Millisecond // between two counts of committed effects
)

// sqlCreateReservation creates the business table. It has no unique key, so that a doubled effect is visible.
const sqlCreateReservation = `
CREATE TABLE reservation (
	id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_id    text        NOT NULL,
	item        text        NOT NULL,
	quantity    integer     NOT NULL,
	amount      bigint      NOT NULL,
	currency    text        NOT NULL,
	reserved_at timestamptz NOT NULL DEFAULT now())`

const sqlReserve = `INSERT INTO reservation (order_id, item, quantity, amount, currency) VALUES ($1, $2, $3, $4, $5)`

// columnValues are the arguments of sqlReserve.
func (o *order) columnValues() []any {
	return []any{o.OrderID, o.Item, o.Quantity, o.Amount, o.Currency}
}

// A place is where a subject has its tables and its queue.
type place struct {
	server *private.Server
	schema string
	queue  *private.Queue
	pool   *pgxpool.Pool
}

// createPlace makes the place called name on s: a schema with the business table.
func (b *bench) createPlace(ctx context.Context, s *private.Server, name string) (_ *place, err error) {
	p := &place{server: s, schema: "bench_" + strings.ReplaceAll(name, "-", "_")}
	if p.queue, err = b.broker.DeclareQueue(ctx, s.Name+"."+name); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = poolSize
	config.ConnConfig.RuntimeParams["search_path"] = p.schema
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	for _, statement := range []string{"CREATE SCHEMA " + p.schema, sqlCreateReservation} {
		if _, err := p.pool.Exec(ctx, statement); err != nil {
			p.pool.Close()
			return nil, err
		}
	}
	return p, nil
}

// committed waits until n effects have been committed.
func (p *place) committed(ctx context.Context, n int) error {
	tick := time.NewTicker(commitPause)
	defer tick.Stop()
	for {
		var have int
		if err := p.pool.QueryRow(ctx, "SELECT count(*) FROM reservation").Scan(&have); err != nil {
			return err
		}
		if have >= n {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d effects have been committed: %w", have, n, ctx.Err())
		}
	}
}

// bytesLogged returns how many bytes the server's write-ahead log has had so far.
func (p *place) bytesLogged(ctx context.Context) (n int64, err error) {
	return n, p.pool.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&n)
}

// A tally counts the results of a slice.
type tally struct {
	effects, orders    int // business rows, and how many different orders they are of
	followUps, sagas   int // outbox rows, and how many different sagas they are in
	handled, unhandled int // orders recorded as handled; messages put aside
}

// checkTally returns an error unless each of n messages had its effect once.
func (p *place) checkTally(ctx context.Context, sqlTally string, n int) error {
	rows, _ := p.pool.Query(ctx, sqlTally)
	got, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (t tally, err error) {
		return t, row.Scan(&t.effects, &t.orders, &t.followUps, &t.sagas, &t.handled, &t.unhandled)
	})
	if err != nil {
		return err
	}
	if want := (tally{n, n, n, n, n, 0}); got != want {
		return fmt.Errorf("a message was lost or handled twice: got %+v, want %+v", got, want)
	}
	return nil
}
