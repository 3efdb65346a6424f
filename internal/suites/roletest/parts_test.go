package roletest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// In a schema with some parts each role may do on the tables that there are what it may in a
// whole one. The SQL refuses a schema with other parts than its own.
func TestRolesOfSomeParts(t *testing.T) {
	t.Parallel()
	server := pgservertest.New(t)
	admin := pgtest.Pool(t, server.URL())
	whole := roletest.New(t, server, admin, pgtest.Name())
	for _, parts := range [][]migrations.Part{
		{migrations.Idempotency}, {migrations.Outbox}, {migrations.Inbox}, {migrations.Saga}, {migrations.Idempotency, migrations.Outbox},
	} {
		r := &roletest.Roles{Server: server, Admin: admin, Schema: pgtest.Name(), Prefix: pgtest.Name()}
		if err := migrations.Up(t.Context(), server.URL(), r.Schema, parts...); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Exec(t.Context(), r.SQL(t), pgx.QueryExecModeSimpleProtocol); err == nil || !strings.Contains(err.Error(), "has other parts") {
			t.Errorf("the SQL of all parts, for %v: %v, want a refusal", parts, err)
		}
		var sql strings.Builder
		if err := migrations.Roles(&sql, r.Schema, r.Prefix, parts...); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r.Exec(t, sql.String())
		}
		for _, name := range roletest.Names() {
			want := slices.DeleteFunc(whole.Grants(t, name), func(g roletest.Grant) bool { return !exists(t, r, g) })
			if diff := cmp.Diff(want, r.Grants(t, name)); diff != "" {
				t.Errorf("grants of %s with %v (-want +got):\n%s", name, parts, diff)
			}
		}
	}
}

// exists reports whether the schema of r has what g is about.
func exists(t *testing.T, r *roletest.Roles, g roletest.Grant) (there bool) {
	t.Helper()
	if strings.HasPrefix(g.On, "SCHEMA ") {
		return true
	}
	relation := sqlschema.Bind(r.Schema, strings.TrimPrefix(g.On, "SEQUENCE "))
	if err := r.Admin.QueryRow(t.Context(), "SELECT to_regclass($1) IS NOT NULL", relation).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}
