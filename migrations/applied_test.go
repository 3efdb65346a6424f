package migrations_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// applied returns what ListApplied says of name as the role of pool, nil for nothing.
func applied(t *testing.T, pool *pgxpool.Pool, name string) *migrations.Applied {
	t.Helper()
	all, err := migrations.ListApplied(t.Context(), pool)
	if err != nil {
		t.Fatalf("ListApplied: %v", err)
	}
	i := slices.IndexFunc(all, func(a migrations.Applied) bool { return a.Schema == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// ListApplied knows schemas with any part, and those of nobody else.
func TestListAppliedKnowsVersionAndParts(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	all, some, other := schema(t), schema(t), schema(t)
	for s, parts := range map[string][]migrations.Part{all: nil, some: {migrations.Idempotency}, other: nil} {
		if err := migrations.Up(t.Context(), pgtest.Direct(), s, parts...); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(statement string) {
		t.Helper()
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec("COMMENT ON TABLE " + other + ".schema_version IS NULL") // as the migrator of another program leaves it
	every := []migrations.Part{migrations.Idempotency, migrations.Outbox, migrations.Inbox, migrations.Saga}
	for name, want := range map[string]*migrations.Applied{
		all:   {Schema: all, Version: migrations.Newest(), Parts: every},
		some:  {Schema: some, Version: migrations.Newest(), Parts: every[:1]},
		other: nil,
	} {
		if diff := cmp.Diff(want, applied(t, pool, name)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if err := migrations.Down(t.Context(), pgtest.Direct(), some, 0); err != nil {
		t.Fatal(err)
	}
	if got := applied(t, pool, some); got != nil {
		t.Errorf("after Down to 0: %+v", got)
	}

	role := pgtest.Name()
	exec("CREATE ROLE " + role)
	t.Cleanup(func() { exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	config := pgtest.DirectConfig(t)
	config.ConnConfig.RuntimeParams["role"] = role
	as, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer as.Close()
	denied := &migrations.Applied{Schema: all, Parts: every, Denied: true}
	if diff := cmp.Diff(denied, applied(t, as, all)); diff != "" {
		t.Errorf("without grants, -want +got:\n%s", diff)
	}
	exec("GRANT USAGE ON SCHEMA " + all + " TO " + role)
	exec("GRANT SELECT ON " + all + ".schema_version TO " + role)
	denied.Denied, denied.Version = false, migrations.Newest()
	if diff := cmp.Diff(denied, applied(t, as, all)); diff != "" {
		t.Errorf("with the grants, -want +got:\n%s", diff)
	}
}

// A statementLog notes each statement of a connection.
type statementLog struct {
	mu  sync.Mutex
	all []string
}

func (l *statementLog) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, strings.TrimSpace(data.SQL))
	return ctx
}

func (l *statementLog) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The server limits each statement of ListApplied, which may wait for a migration, as the caller does. A client that has
// died cannot cancel it.
func TestListAppliedIsLimitedByTheServer(t *testing.T) {
	t.Parallel()
	name := schema(t)
	if err := migrations.Up(t.Context(), pgtest.Direct(), name); err != nil {
		t.Fatal(err)
	}
	log := &statementLog{}
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = log
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := migrations.ListApplied(ctx, pool); err != nil {
		t.Fatal(err)
	}
	limited, reads := false, 0
	for _, statement := range log.all {
		switch word, _, _ := strings.Cut(statement, " "); strings.ToLower(word) {
		case "begin":
			limited = strings.Contains(statement, "SET LOCAL statement_timeout")
		case "commit":
			limited = false
		default:
			if reads++; !limited {
				t.Errorf("no limit for %s", statement)
			}
		}
	}
	if reads < 2 {
		t.Errorf("the statements are %q", log.all)
	}
}
