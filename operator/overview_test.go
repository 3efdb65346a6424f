package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// sqlTrouble has a row for each problem that rows can make, and keys of requests: 2 in progress, one of them past its
// lease, a completed one, and one that no sweeper has removed; one whose outcome is unknown, one whose process died in a
// call, and one that runs.
const sqlTrouble = `
INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
SELECT '', '', state || until::text, state, '', '', gen_random_uuid(), 1, until, now() + CASE state WHEN 4 THEN -interval '8 hours' ELSE interval '1 day' END
FROM (VALUES (1, now() + interval '1 hour'), (1, now() - interval '2 hours'), (3, now() - interval '3 hours'), (4, now())) AS k (state, until);
INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
SELECT '', 'effects', state || until::text, state, '', '', gen_random_uuid(), 1, until, 'infinity'
FROM (VALUES (5, now() - interval '8 hours'), (1, now() - interval '9 hours'), (1, now() + interval '1 hour')) AS k (state, until);
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
SELECT g, gen_random_uuid(), 't', 't', '', '', '', '', '', '', '', '', '', state, now() + interval '1 hour', 1, 'no queue', now() - g * interval '1 hour'
FROM unnest('{refused,dead,dead}'::text[]) WITH ORDINALITY AS h (state, g);
SELECT setval('{schema}.outbox_id_seq', 3);
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, created_at)
VALUES (gen_random_uuid(), 't', 't', '', '', '', '', '', '', '', '', '', now() - interval '1 hour');
INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at, first_at)
SELECT state, 'action', '', state || reason, 'pay', '', 't', '', '{}', '{}', '', reason, now() - interval '10 minutes', now() - interval '5 hours'
FROM (VALUES ('retrying', 'failed'), ('dead', 'terminal'), ('dead', 'parked')) AS p (state, reason);
INSERT INTO {schema}.saga (scope, key, id, root, version, name, plan_hash, started_at, state, progress, status, reason, updated_at, due_at)
SELECT '', status || reason, gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', now(), '{}', '{}', status, reason, now() - interval '6 hours', now() - interval '7 minutes'
FROM (VALUES ('running', ''), ('running', 'held'), ('stuck', 'no reply'), ('paused', ''), ('compensating', '')) AS s (status, reason)`

// troubled makes a schema with all problems that rows can make.
func troubled(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	if _, err := pool.Exec(t.Context(), strings.ReplaceAll(sqlTrouble, "{schema}", schema), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return pool, schema
}

func about(a, b time.Duration) bool { return (a == 0) == (b == 0) && (a-b).Abs() < time.Minute }

// An overview has all parts of a schema, and its problems, the cause first.
func TestOverviewOfASchemaInTrouble(t *testing.T) {
	t.Parallel()
	pool, schema := troubled(t)
	all, err := ReadOverview(t.Context(), pool, &OverviewOptions{Schemas: []string{schema}})
	if err != nil || len(all) != 1 {
		t.Fatalf("%d schemas, %v", len(all), err)
	}
	s := all[0]
	near := gocmp.Comparer(about)
	want := migrations.Applied{Schema: schema, Version: migrations.Newest(), Parts: []migrations.Part{migrations.Idempotency, migrations.Outbox, migrations.Inbox, migrations.Saga}}
	if diff := gocmp.Diff(want, s.Applied); diff != "" {
		t.Errorf("applied, -want +got:\n%s", diff)
	}
	if diff := gocmp.Diff(&RequestStats{InProgress: 3, Abandoned: 1, OldestAbandoned: 2 * time.Hour, Unswept: 8 * time.Hour, Unknown: 2, OldestUnknown: 9 * time.Hour}, s.Requests, near); diff != "" {
		t.Errorf("requests, -want +got:\n%s", diff)
	}
	if o := s.Outbox; o == nil || o.Stored != 1 || !about(o.Oldest, time.Hour) || o.Refused != 1 || o.Dead != 2 || !about(o.OldestDead, 3*time.Hour) || o.LastHolder != "" || o.Lease != 0 {
		t.Errorf("outbox: %+v", o)
	}
	if i := s.Inbox; i == nil || i.Retrying != 1 || i.Dead != 2 || len(i.Parked) != 3 {
		t.Errorf("inbox: %+v", i)
	}
	some, err := ReadOverview(t.Context(), pool, &OverviewOptions{Schemas: []string{schema}, Parts: []migrations.Part{migrations.Outbox}})
	if err != nil || len(some) != 1 || some[0].Outbox == nil || some[0].Inbox != nil || some[0].Sagas != nil || some[0].Requests != nil || len(some[0].Parts) != 4 {
		t.Errorf("the outbox alone: %+v, %v", some, err)
	}
	sagas := &saga.Stats{Running: 2, Compensating: 1, Paused: 1, Stuck: 1, Held: 1, OldestHeld: 6 * time.Hour, OldestStuck: 6 * time.Hour, OldestPaused: 6 * time.Hour, Silent: 6 * time.Hour, Overdue: 7 * time.Minute}
	if diff := gocmp.Diff(sagas, s.Sagas, near); diff != "" {
		t.Errorf("sagas, -want +got:\n%s", diff)
	}
	problems := []Problem{
		{ProblemSweeper, 0, 8 * time.Hour}, {ProblemRelay, 1, time.Hour}, {ProblemRefused, 1, 0}, {ProblemOutboxDead, 2, 3 * time.Hour}, {ProblemConsumer, 1, 10 * time.Minute}, {ProblemDead, 2, 5 * time.Hour},
		{ProblemOrchestrator, 0, 7 * time.Minute}, {ProblemStuck, 1, 6 * time.Hour}, {ProblemPaused, 1, 6 * time.Hour}, {ProblemHeld, 1, 6 * time.Hour},
		{ProblemUnknown, 2, 9 * time.Hour},
	}
	got := slices.DeleteFunc(s.Problems(), func(n Problem) bool { return n.Kind == ProblemTransaction }) // of whichever test
	if diff := gocmp.Diff(problems, got, near); diff != "" {
		t.Errorf("problems, -want +got:\n%s", diff)
	}
}

// The problems that no planted row makes.
func TestProblemsByThresholds(t *testing.T) {
	t.Parallel()
	quiet := func() *SchemaStatus {
		return &SchemaStatus{
			Applied: migrations.Applied{Version: migrations.Newest()},
			Outbox:  &outbox.Stats{Stored: 9, Oldest: outboxPatience, Holder: "h", OldestWriter: transactionPatience},
			Inbox:   &consumer.Stats{Retrying: 7, Overdue: duePatience}, Sagas: &saga.Stats{Running: 5, Overdue: duePatience},
			Requests: &RequestStats{InProgress: 3, Abandoned: 2, Unswept: sweepPatience},
		}
	}
	for name, tt := range map[string]struct {
		change func(*SchemaStatus)
		want   []Problem
	}{
		"nothing":     {func(*SchemaStatus) {}, nil},
		"migration":   {func(s *SchemaStatus) { s.Version-- }, []Problem{{ProblemMigration, 0, 0}}},
		"denied":      {func(s *SchemaStatus) { s.Denied, s.Version = true, 0 }, []Problem{{ProblemGrant, 0, 0}}},
		"unreadable":  {func(s *SchemaStatus) { s.Unreadable = []UnreadablePart{{Part: migrations.Saga, Denied: true}} }, []Problem{{ProblemGrant, 0, 0}}},
		"broken":      {func(s *SchemaStatus) { s.Unreadable = []UnreadablePart{{Part: migrations.Saga}} }, []Problem{{ProblemRepair, 0, 0}}},
		"newer":       {func(s *SchemaStatus) { s.Version++ }, nil},
		"broker":      {func(s *SchemaStatus) { s.Outbox.Oldest = time.Hour }, []Problem{{ProblemBroker, 9, time.Hour}}},
		"relay":       {func(s *SchemaStatus) { s.Outbox.Holder = "" }, []Problem{{ProblemRelay, 9, outboxPatience}}},
		"sequence":    {func(s *SchemaStatus) { s.Outbox.SequenceBehind = 1 }, []Problem{{ProblemSequence, 0, 0}}},
		"transaction": {func(s *SchemaStatus) { s.Outbox.OldestWriter = time.Hour }, []Problem{{ProblemTransaction, 0, time.Hour}}},
		"waiting":     {func(s *SchemaStatus) { s.Outbox.Waiting = 4 }, []Problem{{ProblemRefused, 4, 0}}},
		"sweeper":     {func(s *SchemaStatus) { s.Requests.Unswept = 2 * time.Hour }, []Problem{{ProblemSweeper, 0, 2 * time.Hour}}},
		"empty parts": {func(s *SchemaStatus) { *s = SchemaStatus{Applied: s.Applied} }, nil},
	} {
		s := quiet()
		tt.change(s)
		if diff := gocmp.Diff(tt.want, s.Problems()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// A schema without some parts has none of their numbers, and one that a role may not read is named.
func TestOverviewOfPartsAndOfWhatIsDenied(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.NewSchema(t)
	some := pgtest.Name()
	pgtest.DropSchema(t, some)
	if err := migrations.Up(t.Context(), pgtest.Direct(), some, migrations.Idempotency); err != nil {
		t.Fatal(err)
	}
	all, err := ReadOverview(t.Context(), pool, &OverviewOptions{Schemas: []string{some, schema}})
	if err != nil || len(all) != 2 || all[0].Schema != some || all[1].Schema != schema {
		t.Fatalf("%+v, %v; want the two schemas in the order of their names on the call", all, err)
	}
	if s := all[0]; s.Requests == nil || s.Outbox != nil || s.Inbox != nil || s.Sagas != nil || len(s.Parts) != 1 || len(s.Problems()) != 0 {
		t.Errorf("with one part: %+v", s)
	}
	if _, err := ReadOverview(t.Context(), pool, &OverviewOptions{Schemas: []string{schema, "no_such"}}); !errors.Is(err, ErrNoSchema) || !strings.Contains(err.Error(), `"no_such"`) {
		t.Errorf("of a schema without tables: %v", err)
	}
	listed, err := ReadOverview(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{some, schema} {
		if !slices.ContainsFunc(listed, func(s SchemaStatus) bool { return s.Schema == name }) {
			t.Errorf("without names %s is not listed", name)
		}
	}

	role := pgtest.Name()
	exec := func(statement string) {
		t.Helper()
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec("CREATE ROLE " + role)
	t.Cleanup(func() { exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	exec("GRANT USAGE ON SCHEMA " + schema + " TO " + role + "; GRANT SELECT ON " + schema + ".parked TO " + role)
	config := pgtest.DirectConfig(t)
	config.ConnConfig.RuntimeParams["role"] = role
	as, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer as.Close()
	denied, err := ReadOverview(t.Context(), as, &OverviewOptions{Schemas: []string{schema}})
	if err != nil || len(denied) != 1 {
		t.Fatalf("%+v, %v", denied, err)
	}
	if s := denied[0]; !s.Denied || s.Version != 0 || s.Inbox == nil || s.Sagas != nil || unreadable(s) != "idempotency true, outbox true, saga true" {
		t.Errorf("as a role that may read parked alone: %+v", s)
	}
	exec("ALTER TABLE " + schema + ".outbox_held RENAME COLUMN refused_at TO other")
	t.Cleanup(func() { exec("ALTER TABLE " + schema + ".outbox_held RENAME COLUMN other TO refused_at") })
	if broken, err := ReadOverview(t.Context(), pool, &OverviewOptions{Schemas: []string{schema}}); err != nil || unreadable(broken[0]) != "outbox false" || broken[0].Inbox == nil {
		t.Errorf("with a table that does not fit: %+v, %v", broken, err)
	}
}

// unreadable are the parts that could not be read, with whether they were denied.
func unreadable(s SchemaStatus) string {
	var all []string
	for _, p := range s.Unreadable {
		all = append(all, fmt.Sprint(p.Part, " ", p.Denied))
	}
	return strings.Join(all, ", ")
}

// The look at requests reads no more rows than its limit, along the index.
func TestRequestsAreCountedByIndex(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.NewSchema(t)
	f := &fixture{pool: pool, schema: schema}
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
		SELECT '', '', g::text, CASE WHEN g % 2 = 0 THEN 1 ELSE 3 END, '', '', gen_random_uuid(), 1, now(), now() + g * interval '1 s' FROM generate_series(1, 20000) AS g`)
	f.exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
		SELECT '', 'effects', g::text, 5, '', '', gen_random_uuid(), 1, now() - interval '1 hour', 'infinity' FROM generate_series(1, 5) AS g`)
	f.exec(t, "ANALYZE {schema}.idempotency_key")
	sql := newOverviewQueries(schema).readRequests
	var plan string
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), pg.ReadByIndex); err != nil {
			return err
		}
		rows, _ := tx.Query(t.Context(), "EXPLAIN (COSTS OFF) "+sql, pgx.QueryExecModeDescribeExec, countedRequests, outbox.CountLimit)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return err
	})
	if err != nil || !strings.Contains(plan, "Index Scan Backward using idempotency_key_expires_at") || strings.Count(plan, " using idempotency_key") != 3 || strings.Count(plan, "Limit") != 3 || strings.Contains(plan, "Sort") {
		t.Errorf("error %v; the plan:\n%s", err, plan)
	}
	var inProgress, abandoned, unknown int
	var age, unknownAge float64
	err = pool.QueryRow(t.Context(), sql, 15, 4).Scan(&inProgress, &abandoned, &age, &unknown, &unknownAge, nil)
	if err != nil || inProgress != 5 || abandoned != 5 || age <= 0 || unknown != 4 || unknownAge < 3600 {
		t.Errorf("of the 15 that expire last %d are in progress, %d abandoned for %f s; %d of at most 4 are unknown for %f s, %v; want 5 and 5", inProgress, abandoned, age, unknown, unknownAge, err)
	}
}
