package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/target"
)

const (
	rowsGoal = 0.95
	loaders  = 2
)

// sqlLoadRows stores rows as other sagas' steps leave them.
const sqlLoadRows = `
INSERT INTO inbox (scope, key, step, n, state, attempts, digest)
SELECT $1, gen_random_uuid()::text, $2, '', 'done', 1, decode(repeat('5a', 32), 'hex')
FROM generate_series(1, $3)`

// rowCounts compares a consumer whose inbox has millions of rows with one whose inbox begins empty. Both
// inboxes keep their rows between slices.
//
// A row at a random place of a large index logs its whole page if the page changes for the first time since a
// checkpoint. With minutes between checkpoints almost no change is such a first one. So the slices that count
// run without a checkpoint in between; those right after one are for information.
func (b *bench) rowCounts(ctx context.Context) ([]target.Target, error) {
	empty, err := b.newSubject(ctx, b.servers[0], kindBatch, "rows-none")
	if err != nil {
		return nil, err
	}
	defer empty.closePool()
	full, err := b.newSubject(ctx, b.servers[0], kindBatch, "rows-many")
	if err != nil {
		return nil, err
	}
	defer full.closePool()
	empty.way.(*ours).keepInbox, full.way.(*ours).keepInbox = true, true
	if err := full.loadRows(ctx, b.rows); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	var ratios []float64
	for round := range b.rounds + 2 { // the first warms up, the last is after a checkpoint
		with, without, err := b.rowsRound(ctx, full, empty, round)
		if err != nil {
			return nil, err
		}
		fmt.Printf("rows round %d: with %d rows %6.0f msg/s, %s\n", round, b.rows, with.messageRate(), with)
		fmt.Printf("rows round %d: with   none    %6.0f msg/s, %s; ratio %.2f\n", round, without.messageRate(), without, with.messageRate()/without.messageRate())
		if round > 0 && round <= b.rounds {
			ratios = append(ratios, with.messageRate()/without.messageRate())
		}
	}
	return []target.Target{{Name: "consumer-10m", Value: target.MedianOf(ratios), Goal: rowsGoal}}, nil
}

// rowsRound measures both; the first one alternates.
func (b *bench) rowsRound(ctx context.Context, full, empty *subject, round int) (with, without outcome, err error) {
	pair, outcomes := []*subject{full, empty}, make([]outcome, 2)
	last := round == b.rounds+1
	backlog := min(full.backlog, empty.backlog)
	for turn := range pair {
		i := (turn + round) % 2
		if outcomes[i], err = pair[i].drainQueue(ctx, backlog, last); err != nil {
			return with, without, err
		}
		pair[i].sizeNextSlice(outcomes[i].messageRate(), b.slice)
	}
	return outcomes[0], outcomes[1], nil
}

// loadRows inserts n rows into the inbox and then builds its index. The pages are full, as steps leave them:
// steps use up the space that the fillfactor keeps free.
func (s *subject) loadRows(ctx context.Context, n int) error {
	start := time.Now()
	var name, definition, fill string
	err := s.pool.QueryRow(ctx, `SELECT conname, pg_get_constraintdef(k.oid), array_to_string(reloptions, ', ')
		FROM pg_constraint k JOIN pg_class c ON c.oid = conrelid WHERE contype = 'p' AND conrelid = 'inbox'::regclass`).Scan(&name, &definition, &fill)
	if err == nil {
		_, err = s.pool.Exec(ctx, "ALTER TABLE inbox SET (fillfactor = 100), DROP CONSTRAINT "+pgx.Identifier{name}.Sanitize())
	}
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	faults := make([]error, loaders)
	for i := range faults {
		wg.Go(func() { _, faults[i] = s.pool.Exec(ctx, sqlLoadRows, scope, step, n/loaders) })
	}
	wg.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	for _, statement := range []string{
		"VACUUM (FREEZE, ANALYZE) inbox",
		"CHECKPOINT", // otherwise the slices would write out the loaded rows
		"ALTER TABLE inbox SET (" + fill + "), ADD CONSTRAINT " + pgx.Identifier{name}.Sanitize() + " " + definition,
	} {
		if _, err := s.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if err := s.warmTables(ctx); err != nil {
		return err
	}
	var sizes string
	err = s.pool.QueryRow(ctx, "SELECT pg_size_pretty(pg_table_size('inbox')) || ', index ' || pg_size_pretty(pg_indexes_size('inbox'))").Scan(&sizes)
	fmt.Printf("rows loaded %d in %.0f s: inbox %s\n", n, time.Since(start).Seconds(), sizes)
	return err
}

// warmTables reads the index of the inbox on each connection. With a few thousand random keys a second the
// whole index is in use after half a minute, longer than a slice. The kernel also maps a shared buffer when a
// server process uses it first. A process that has worked for long has mapped them all.
func (s *subject) warmTables(ctx context.Context) error {
	var conns []*pgxpool.Conn
	defer func() {
		for _, c := range conns {
			c.Release()
		}
	}()
	for range s.pool.Config().MaxConns {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		_, err = conn.Exec(ctx, "BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SELECT count(*) FROM inbox WHERE scope >= ''; COMMIT")
		if err != nil {
			return err
		}
	}
	return nil
}
