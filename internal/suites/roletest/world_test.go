package roletest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// runTime bounds a scenario.
const runTime = 30 * time.Second

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A world is a schema whose processes have the roles that are theirs, and a business
// schema beside it.
type world struct {
	t *testing.T
	*roletest.Roles
	pools map[string]*pgxpool.Pool // by role

	mu   sync.Mutex
	stop context.CancelCauseFunc // ends the scenario that runs
}

// sqlCreateBusiness makes the tables of handlers. They are not part of the roles: a service grants them.
const sqlCreateBusiness = `
CREATE SCHEMA business;
CREATE TABLE business.effect (key text, what text);
CREATE TABLE business.account (owner text, balance int);
GRANT USAGE ON SCHEMA business TO {prefix}_entry, {prefix}_consumer;
GRANT INSERT ON business.effect TO {prefix}_entry, {prefix}_consumer`

func newWorld(t *testing.T) *world {
	t.Helper()
	server := pgservertest.New(t)
	w := &world{t: t, pools: map[string]*pgxpool.Pool{}}
	w.Roles = roletest.New(t, server, pgtest.Pool(t, server.URL()), pgtest.Name())
	w.Exec(t, strings.ReplaceAll(sqlCreateBusiness, "{prefix}", w.Prefix))
	for _, role := range roletest.Names() {
		w.pools[role] = w.Pool(t, role, w.deny)
	}
	return w
}

// deny ends the scenario that runs: it lacks a right.
func (w *world) deny(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop(err)
	}
}

// A scenario does all the work of the processes of a role, under a unique key. It returns the operations that
// were denied.
type scenario func(ctx context.Context, w *world, key string) error

// run returns why a scenario has not come to its end: the first right that was missing, if
// that was it.
func (w *world) run(do scenario, key string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), runTime)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.mu.Lock()
	w.stop = stop
	w.mu.Unlock()
	err := do(ctx, w, key)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// checkLeast runs the scenarios with all grants of a role, and without each of them: one of
// them must lack it then.
func (w *world) checkLeast(role string, all ...scenario) {
	w.t.Helper()
	every := func(key string) error {
		for _, do := range all {
			if err := w.run(do, key); err != nil {
				return err
			}
		}
		return nil
	}
	if err := every("first"); err != nil {
		w.t.Fatalf("%s with all its grants: %v", role, err)
	}
	for i, g := range w.Grants(w.t, role) {
		w.Without(w.t, role, g, func() {
			before := w.astray()
			err := every(fmt.Sprint("k", i))
			if leaf := g.On == "SEQUENCE {schema}.outbox_leaf" && err == nil && w.astray() > before; !leaf && !denied(err) {
				w.t.Errorf("%s without %s: %v; want that it is denied something", role, g, err)
			}
		})
	}
	if err := every("last"); err != nil {
		w.t.Errorf("%s with all its grants again: %v", role, err)
	}
}

// astray is how many messages are in the catch-all of the outbox: from PostgreSQL 17 on, that is
// what becomes of those whose writer may not see which leaf is in use.
func (w *world) astray() (n int) {
	w.t.Helper()
	if err := w.Admin.QueryRow(w.t.Context(), w.bind("SELECT count(*) FROM {schema}.outbox_other")).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func denied(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == roletest.Denied
}

func (w *world) bind(statement string) string { return sqlschema.Bind(w.Schema, statement) }

// admin runs a statement as the superuser, who has all rights.
func (w *world) admin(ctx context.Context, statement string, args ...any) error {
	_, err := w.Admin.Exec(ctx, w.bind(statement), args...)
	return err
}

// await waits until the superuser reads true.
func (w *world) await(ctx context.Context, query string, args ...any) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var done bool
		if err := w.Admin.QueryRow(ctx, w.bind(query), args...).Scan(&done); err != nil || done {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", query, ctx.Err())
		}
	}
}

// beside runs what is long-lived while do runs, and returns the first error.
func beside(ctx context.Context, do func(context.Context) error, running ...func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	errs := make([]error, len(running)+1)
	var wg sync.WaitGroup
	for i, run := range running {
		wg.Go(func() { errs[i+1] = run(ctx) })
	}
	errs[0] = do(ctx)
	stop()
	wg.Wait()
	return errors.Join(errs...)
}

// effect notes what a handler does in the business schema.
func effect(ctx context.Context, tx pgx.Tx, key, what string) error {
	_, err := tx.Exec(ctx, "INSERT INTO business.effect (key, what) VALUES ($1, $2)", key, what)
	return err
}

// sqlHappened is true when the effects $2 of a key are there.
const sqlHappened = `
SELECT coalesce((SELECT string_agg(what, ' ' ORDER BY what COLLATE "C") FROM business.effect WHERE key = $1), '') = $2`
