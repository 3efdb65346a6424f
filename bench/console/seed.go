package main

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// counts are how many rows there are.
type counts struct{ sagas, inbox, letters int }

// inboxEach is how many rows of the inbox a saga has that has completed.
const inboxEach = 10

// shares returns how many copies of each kind there are. Four fifths of the dead letters are those of steps; a stuck saga
// has two.
func (c *counts) shares() (kinds []string, numbers []int) {
	dead := c.letters * 8 / 10
	stuck, parked := min(dead/8, c.sagas/50), min(dead*3/16, c.sagas/50)
	done := c.sagas
	add := func(kind string, n int) {
		kinds, numbers = append(kinds, kind), append(numbers, n)
		done -= n
	}
	add("stuck", stuck)
	add("parked", parked)
	add("failing", c.sagas/500)
	add("undoing", c.sagas/500)
	add("paused", c.sagas/1000)
	add("running", c.sagas/50)
	add("rejected", c.sagas*6/100)
	add("done", done)
	add("loose", dead-2*stuck-parked)
	add("step", max(0, c.inbox-c.sagas*inboxEach*97/100)) // what the others lack
	return kinds, numbers
}

//go:embed seed.sql
var seedStatements string

// sqlTakeSamples keeps the rows of the samples.
const sqlTakeSamples = `
CREATE SCHEMA bench;
CREATE TABLE bench.share (kind text, low bigint, high bigint);
CREATE TABLE bench.sample (kind text, key text, id uuid, started_at timestamptz);
CREATE TABLE bench.saga AS SELECT * FROM shop.saga;
CREATE TABLE bench.saga_journal AS SELECT * FROM shop.saga_journal;
CREATE TABLE bench.inbox AS SELECT * FROM shop.inbox;
CREATE TABLE bench.parked AS SELECT * FROM shop.parked;
CREATE TABLE bench.outbox AS SELECT * FROM shop.outbox`

// seedSettings are those of the sessions that fill the tables.
var seedSettings = []string{"SET synchronous_commit = off", "SET maintenance_work_mem = '1GB'", "SET work_mem = '256MB'", "SET jit = off", "SET enable_nestloop = off"}

// seed fills the tables with copies of the samples. No service runs meanwhile.
func seed(ctx context.Context, url string, samples []*sample, c *counts) error {
	var conns [2]*pgx.Conn // of the inbox, which takes longest, and of all else
	for i := range conns {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		for _, setting := range seedSettings {
			if _, err := conn.Exec(ctx, setting); err != nil {
				return err
			}
		}
		conns[i] = conn
	}
	if err := takeSamples(ctx, conns[0], samples, c); err != nil {
		return err
	}
	dead := c.letters - c.letters*8/10
	text := strings.NewReplacer("{keys}", strconv.Itoa(c.sagas), "{held}", strconv.Itoa(dead*3/2+1000), "{dead}", strconv.Itoa(dead), "{refused}", "1000").Replace(seedStatements)
	for phase := range strings.SplitSeq(text, "\n-- phase\n") {
		group, ctx := errgroup.WithContext(ctx)
		for i, conn := range conns {
			group.Go(func() error {
				for _, part := range splitStatements(phase) {
					if (part.table == "inbox") != (i == 0) {
						continue
					}
					if err := part.run(ctx, conn); err != nil {
						return fmt.Errorf("seed: %.200s: %w", part.text, err)
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// takeSamples keeps the rows of the samples, and numbers the copies by kind.
func takeSamples(ctx context.Context, conn *pgx.Conn, samples []*sample, c *counts) error {
	if _, err := conn.Exec(ctx, sqlTakeSamples); err != nil {
		return err
	}
	for _, s := range samples {
		if _, err := conn.Exec(ctx, "INSERT INTO bench.sample SELECT $1, key, id, started_at FROM bench.saga WHERE key = $2", s.kind, s.key); err != nil {
			return err
		}
	}
	kinds, numbers := c.shares()
	first := 0
	for i, kind := range kinds {
		if _, err := conn.Exec(ctx, "INSERT INTO bench.share VALUES ($1, $2, $3)", kind, first, first+numbers[i]); err != nil {
			return err
		}
		first += numbers[i]
	}
	return nil
}

// A seedStatement is a statement of seed.sql.
type seedStatement struct{ text, table string }

var (
	endOfStatement = regexp.MustCompile(`;\n\n`)
	tableMark      = regexp.MustCompile(`(?m)^-- table ([a-z_]+)$`)
	commentLine    = regexp.MustCompile(`(?m)^--.*\n`)
)

func splitStatements(text string) (all []seedStatement) {
	for _, part := range endOfStatement.Split(text, -1) {
		s := seedStatement{text: strings.TrimSuffix(strings.TrimSpace(commentLine.ReplaceAllString(part, "")), ";")}
		if mark := tableMark.FindStringSubmatch(part); mark != nil {
			s.table = mark[1]
		}
		all = append(all, s)
	}
	return all
}

// run executes s. A table that it loads is emptied in the same transaction, and has no indexes meanwhile: the server then
// writes no log of it.
func (s *seedStatement) run(ctx context.Context, conn *pgx.Conn) error {
	if s.table == "" {
		_, err := conn.Exec(ctx, s.text)
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		drop, create, err := listIndexes(ctx, tx, s.table)
		if err != nil {
			return err
		}
		for _, statement := range append(append([]string{"TRUNCATE shop." + s.table}, drop...), append([]string{s.text}, create...)...) {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// sqlListIndexes returns the statements that drop the indexes of a table, and those that create them.
const sqlListIndexes = `
SELECT coalesce('ALTER TABLE shop.' || $1 || ' DROP CONSTRAINT ' || c.conname, 'DROP INDEX ' || i.indexrelid::regclass),
	coalesce('ALTER TABLE shop.' || $1 || ' ADD CONSTRAINT ' || c.conname || ' ' || pg_get_constraintdef(c.oid), pg_get_indexdef(i.indexrelid))
FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.contype IN ('p', 'u')
WHERE i.indrelid = ('shop.' || $1::text)::regclass`

func listIndexes(ctx context.Context, tx pgx.Tx, table string) (drop, create []string, err error) {
	rows, _ := tx.Query(ctx, sqlListIndexes, table)
	var dropped, created string
	_, err = pgx.ForEachRow(rows, []any{&dropped, &created}, func() error {
		drop, create = append(drop, dropped), append(create, created)
		return nil
	})
	return drop, create, err
}
