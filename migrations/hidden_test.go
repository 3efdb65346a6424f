package migrations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// The list of tables that are looked at for row-level security has all tables of a schema.
func TestTablesAreAll(t *testing.T) {
	t.Parallel()
	name := schema(t)
	if err := migrations.Up(t.Context(), pgtest.Direct(), name); err != nil {
		t.Fatal(err)
	}
	rows, _ := pgtest.Pool(t, pgtest.Direct()).Query(t.Context(), "SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p')", name)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values(sqlschema.Tables))
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("a schema has %q, and sqlschema.Tables %q", got, want)
	}
}

// A version that row-level security hides is not version 0.
func TestAHiddenVersionIsNotVersionZero(t *testing.T) {
	t.Parallel()
	name := schema(t)
	if err := migrations.Up(t.Context(), pgtest.Direct(), name); err != nil {
		t.Fatal(err)
	}
	outsider := pgtest.NewOutsider(t, pgtest.Pool(t, pgtest.Direct()), name)
	outsider.Hide(t, "schema_version")
	if applied, _, err := migrations.Version(t.Context(), outsider.URL(), name); err == nil || !strings.Contains(err.Error(), "row-level security") || applied != 0 {
		t.Errorf("Version = %d, %v; want an error that says that the version is hidden", applied, err)
	}
}
