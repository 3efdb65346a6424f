package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/migrations"
)

const (
	workerSessions = "bench-scale" // application name of all sessions whose work is counted
	alonePause     = 5 * time.Millisecond
)

// sqlCreateTables creates the business tables of a schema: effects of steps, and starts of sagas. A doubled
// effect is an error.
const sqlCreateTables = `
CREATE TABLE %[1]s.effect (
	order_id uuid        PRIMARY KEY,
	item     text        NOT NULL,
	quantity integer     NOT NULL,
	amount   bigint      NOT NULL,
	done_at  timestamptz NOT NULL DEFAULT now());
CREATE TABLE %[1]s.placed (LIKE %[1]s.effect INCLUDING ALL)`

const (
	sqlAddEffect = `INSERT INTO effect (order_id, item, quantity, amount) VALUES ($1, $2, $3, $4)`
	sqlAddPlaced = `INSERT INTO placed (order_id, item, quantity, amount) VALUES ($1, $2, $3, $4)`
)

// A place is where a series has its tables and its queues.
type place struct {
	server  *private.Server
	broker  *private.Broker
	schemas []string
	queues  []*private.Queue
	all     *pgxpool.Pool // of the benchmark itself
}

// createPlace creates the named schemas and queues.
func (b *bench) createPlace(ctx context.Context, s *private.Server, prefix string, schemas, topics []string) (p *place, err error) {
	p = &place{server: s, broker: b.broker}
	if p.all, err = pgxpool.New(ctx, s.URL); err != nil {
		return nil, err
	}
	for _, name := range schemas {
		schema := prefix + "_" + name
		p.schemas = append(p.schemas, schema)
		if err := migrations.Up(ctx, s.URL, schema); err != nil {
			return nil, err
		}
		if _, err := p.all.Exec(ctx, fmt.Sprintf(sqlCreateTables, schema)); err != nil {
			return nil, err
		}
	}
	for _, name := range topics {
		q, err := b.broker.DeclareQueue(ctx, s.Name+"."+prefix+"."+name)
		if err != nil {
			return nil, err
		}
		p.queues = append(p.queues, q)
	}
	return p, nil
}

// fieldName turns a name into a part of an SQL identifier.
func fieldName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// jobForRole returns a job that any worker of the place may have.
func (p *place) jobForRole(role string) job {
	j := job{Role: role, Database: p.server.URL, Broker: p.broker.URL, Schemas: p.schemas}
	for _, q := range p.queues {
		j.Topics = append(j.Topics, q.Topic)
	}
	return j
}

// clearTables empties tables of every schema, and the queues.
func (p *place) clearTables(ctx context.Context, tables ...string) error {
	var names []string
	for _, schema := range p.schemas {
		for _, table := range tables {
			names = append(names, schema+"."+table)
		}
	}
	if len(names) > 0 {
		if _, err := p.all.Exec(ctx, "TRUNCATE "+strings.Join(names, ", ")); err != nil {
			return err
		}
	}
	for _, q := range p.queues {
		if err := q.PurgeQueue(); err != nil {
			return err
		}
	}
	return nil
}

// A count is a required number of rows, in each of some schemas.
type count struct {
	of   string // the text after FROM and the schema
	want int
}

func (p *place) checkCounts(ctx context.Context, schemas []string, counts ...count) error {
	for _, schema := range schemas {
		for _, c := range counts {
			var got int
			if err := p.all.QueryRow(ctx, "SELECT count(*) FROM "+schema+"."+c.of).Scan(&got); err != nil {
				return err
			}
			if got != c.want {
				return fmt.Errorf("an effect was lost or happened twice: %d rows in %s.%s, want %d", got, schema, c.of, c.want)
			}
		}
	}
	return nil
}

// checkAcked returns an error if a message went back to a queue.
func (p *place) checkAcked() error {
	for _, q := range p.queues {
		left, err := q.QueueDepth()
		if err != nil {
			return err
		}
		if left > 0 {
			return fmt.Errorf("%d messages on %s were not acked", left, q.Topic)
		}
	}
	return nil
}

// An activity is the work of the database so far.
type activity struct{ commits, syncs, bytes int64 }

func (a activity) addActivity(b activity) activity {
	return activity{a.commits + b.commits, a.syncs + b.syncs, a.bytes + b.bytes}
}

func (a activity) subtractActivity(b activity) activity {
	return activity{a.commits - b.commits, a.syncs - b.syncs, a.bytes - b.bytes}
}

// sqlActivity reads an activity. From PostgreSQL 18 on, pg_stat_wal does not count syncs.
const sqlActivity = `
SELECT d.xact_commit, coalesce((to_jsonb(w) ->> 'wal_sync')::bigint, 0), (pg_current_wal_insert_lsn() - '0/0')::bigint
FROM pg_stat_database d, pg_stat_wal w WHERE d.datname = current_database()`

// readActivity waits until the workers' sessions have ended, because the server has counted all of their work
// only then.
func (p *place) readActivity(ctx context.Context) (a activity, err error) {
	for {
		var open int
		err := p.all.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", workerSessions).Scan(&open)
		if err != nil {
			return a, err
		}
		if open == 0 {
			break
		}
		select {
		case <-time.After(alonePause):
		case <-ctx.Done():
			return a, fmt.Errorf("%d sessions of workers are left: %w", open, ctx.Err())
		}
	}
	return a, p.all.QueryRow(ctx, sqlActivity).Scan(&a.commits, &a.syncs, &a.bytes)
}

// poolConfig configures a pool whose work is counted.
func poolConfig(url, schema string, conns int) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	config.ConnConfig.RuntimeParams["search_path"] = schema
	config.ConnConfig.RuntimeParams["application_name"] = workerSessions
	return config, nil
}
