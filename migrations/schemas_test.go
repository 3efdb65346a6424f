package migrations_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// find returns what Schemas says of name as the role of pool, nil for nothing.
func find(t *testing.T, pool *pgxpool.Pool, name string) *migrations.Schema {
	t.Helper()
	all, err := migrations.Schemas(t.Context(), pool)
	if err != nil {
		t.Fatalf("Schemas: %v", err)
	}
	sorted := slices.IsSortedFunc(all, func(a, b migrations.Schema) int { return strings.Compare(a.Name, b.Name) })
	i := slices.IndexFunc(all, func(s migrations.Schema) bool { return s.Name == name })
	if !sorted {
		t.Errorf("not in order: %v", all)
	}
	if i < 0 {
		return nil
	}
	return &all[i]
}

func TestSchemasAreThoseWithAnInbox(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	name, old, own := schema(t), schema(t), schema(t)
	exec := func(statement string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	for s, parts := range map[string][]migrations.Part{name: nil, old: {migrations.Inbox}} {
		if err := migrations.Up(t.Context(), pgtest.URL(), s, parts...); err != nil {
			t.Fatalf("Up: %v", err)
		}
	}
	if got := find(t, pool, name); got == nil || !got.Readable() {
		t.Errorf("Schemas: %+v, want %s", got, name)
	}

	got := find(t, pool, old)
	if got == nil || got.Readable() || len(got.Denied) > 0 || !slices.Contains(got.Absent, "outbox_relay") || slices.Contains(got.Absent, "inbox") {
		t.Errorf("with the inbox alone: %+v", got)
	}
	if err := migrations.Down(t.Context(), pgtest.URL(), old, 0); err != nil {
		t.Fatal(err)
	}
	if got := find(t, pool, old); got != nil {
		t.Errorf("after Down to 0: %+v", got)
	}

	files := fstest.MapFS{"001_own.sql": {Data: []byte("CREATE TABLE {{.schema}}.inbox (id int)")}}
	if err := migrations.UpFrom(t.Context(), pgtest.URL(), own, "own_version", files); err != nil {
		t.Fatal(err)
	}
	if got := find(t, pool, own); got != nil {
		t.Errorf("an inbox of somebody else's: %+v", got)
	}
	odd := strings.ToUpper(own)
	exec(`CREATE SCHEMA "` + odd + `"`)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), `DROP SCHEMA "`+odd+`" CASCADE`); err != nil {
			t.Error(err)
		}
	})
	exec(`CREATE TABLE "` + odd + `".inbox (); CREATE TABLE "` + odd + `".schema_version ()`)
	if got := find(t, pool, odd); got != nil {
		t.Errorf("a schema that Up refuses: %+v", got)
	}
}

// Schemas names the tables that a role may not read.
func TestSchemasSayWhatIsDenied(t *testing.T) {
	t.Parallel()
	name, role := schema(t), pgtest.Name()
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatalf("Up: %v", err)
	}
	admin := pgtest.Pool(t, pgtest.URL())
	exec := func(statement string) {
		t.Helper()
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec("CREATE ROLE " + role)
	t.Cleanup(func() { exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	config := admin.Config()
	config.ConnConfig.RuntimeParams["role"] = role
	as, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer as.Close()

	exec("GRANT SELECT ON ALL TABLES IN SCHEMA " + name + " TO " + role)
	if got := find(t, as, name); got == nil || got.Readable() || len(got.Denied) != 11 || !got.Sagas || len(got.SagasDenied) != 3 {
		t.Errorf("without USAGE: %+v", got)
	}
	if err := migrations.Down(t.Context(), pgtest.URL(), name, 2); err != nil {
		t.Fatal(err)
	}
	if got := find(t, as, name); got != nil {
		t.Errorf("after Down to 2, which has no inbox: %+v", got)
	}
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatal(err)
	}
	exec("GRANT SELECT ON " + name + ".inbox, " + name + ".inbox_horizon, " + name + ".parked TO " + role)
	exec("GRANT USAGE ON SCHEMA " + name + " TO " + role)
	if got := find(t, as, name); got == nil || !got.Readable() {
		t.Errorf("with all grants: %+v", got)
	}
	if got := find(t, as, name); !slices.Equal(got.SagasDenied, []string{"saga", "saga_definition", "saga_journal"}) {
		t.Errorf("made anew after the grants: %+v", got)
	}
	exec("GRANT SELECT ON " + name + ".saga, " + name + ".saga_journal TO " + role)
	if got := find(t, as, name); !slices.Equal(got.SagasDenied, []string{"saga_definition"}) {
		t.Errorf("without saga_definition: %+v", got)
	}
	exec("REVOKE SELECT ON " + name + ".parked, " + name + ".outbox_1, " + name + ".schema_version FROM " + role)
	if got := find(t, as, name); got == nil || got.Readable() || strings.Join(got.Denied, " ") != "parked outbox_1" {
		t.Errorf("without parked and outbox_1: %+v", got)
	}
}
