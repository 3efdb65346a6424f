package main

import (
	"bytes"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// A town is a database of the test's own, with the schemas of services.
type town struct {
	t   *testing.T
	url string
	db  *pgxpool.Pool
}

// newTown makes a database with the schemas called names.
func newTown(t *testing.T, names ...string) *town {
	t.Helper()
	w := &town{t: t, url: pgtest.Database(t)}
	for _, name := range names {
		if err := migrations.Up(t.Context(), w.url, name); err != nil {
			t.Fatal(err)
		}
	}
	w.db = pgtest.Pool(t, w.url)
	return w
}

// name returns the name of the database.
func (w *town) name() string {
	w.t.Helper()
	at, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimPrefix(at.Path, "/")
}

func (w *town) exec(sql string) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// sagamill runs the command and returns what it prints.
func sagamill(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if got := run(t.Context(), args, &out, &errs); got != code {
		t.Errorf("sagamill %q: exit %d, want %d: %s%s", args, got, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// contains fails the test unless text has all of these parts.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it says\n%s\nwant %s", text, part)
		}
	}
}

// sqlPark has dead letters, and a message that is retrying, in the inbox of a schema.
const sqlPark = `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at, first_at)
SELECT state, 'action', 'acme', reason || g, 'pay', '', 'orders', '', '{}', '{}', '', reason, now() + interval '1 hour', now() - interval '2 hours'
FROM (VALUES ('dead', 'terminal', 1), ('dead', 'terminal', 2), ('dead', 'key-reused', 3), ('retrying', 'failed', 4)) AS p (state, reason, g)`

// sqlBegin has instances in a schema, of statuses that are problems and of others.
const sqlBegin = `INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, ended_at)
SELECT 'acme', status, gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', now(), '{}', '{}', status, now() - interval '4 hours', CASE WHEN status = 'completed' THEN now() END
FROM unnest('{running,stuck,paused,completed}'::text[]) AS status`

func (w *town) plant(sql string, schemas ...string) {
	w.t.Helper()
	for _, name := range schemas {
		w.exec(strings.ReplaceAll(sql, "{schema}", name))
	}
}
