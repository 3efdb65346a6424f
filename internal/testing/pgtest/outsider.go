package pgtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An Outsider is a login role that may do everything with the tables of a schema and owns none of them, so that
// row-level security applies to it. The role, and what it owns, ends with the test.
type Outsider struct {
	Role string
	Pool *pgxpool.Pool // of its sessions

	owner  *pgxpool.Pool
	schema string
}

// NewOutsider makes an Outsider of schema. owner is a pool of who may create roles; further roles are granted to it.
func NewOutsider(t testing.TB, owner *pgxpool.Pool, schema string, member ...string) *Outsider {
	t.Helper()
	o := &Outsider{Role: Name(), owner: owner, schema: schema}
	o.Exec(t, `CREATE ROLE {role} LOGIN PASSWORD 'outsider';
		GRANT USAGE ON SCHEMA {schema} TO {role};
		GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};
		GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}`)
	for _, role := range member {
		o.Exec(t, "GRANT "+role+" TO {role}")
	}
	dropRole(t, o.Role)
	config := DirectConfig(t)
	config.ConnConfig.User, config.ConnConfig.Password = o.Role, "outsider"
	o.Pool = PoolOf(t, config)
	return o
}

// URL returns the address of the test's database for the role.
func (o *Outsider) URL() string {
	c := o.Pool.Config().ConnConfig
	return fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=%s", c.Host, c.Port, c.User, c.Password, c.Database)
}

// Exec executes statements of the owner, in which {role} and {schema} stand for theirs.
func (o *Outsider) Exec(t testing.TB, statements string, args ...any) {
	t.Helper()
	statements = strings.NewReplacer("{role}", o.Role, "{schema}", o.schema).Replace(statements)
	if _, err := o.owner.Exec(context.WithoutCancel(t.Context()), statements, args...); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// Hide makes PostgreSQL hide all rows of tables from the role.
func (o *Outsider) Hide(t testing.TB, tables ...string) {
	t.Helper()
	for _, table := range tables {
		o.Exec(t, "ALTER TABLE {schema}."+pgx.Identifier{table}.Sanitize()+" ENABLE ROW LEVEL SECURITY")
	}
}

// Show takes Hide back.
func (o *Outsider) Show(t testing.TB, tables ...string) {
	t.Helper()
	for _, table := range tables {
		o.Exec(t, "ALTER TABLE {schema}."+pgx.Identifier{table}.Sanitize()+" DISABLE ROW LEVEL SECURITY")
	}
}

// NewRole makes a role that cannot log in. It ends with the test.
func NewRole(t testing.TB, owner *pgxpool.Pool) string {
	t.Helper()
	role := Name()
	if _, err := owner.Exec(t.Context(), "CREATE ROLE "+role); err != nil {
		t.Fatalf("create role: %v", err)
	}
	dropRole(t, role)
	return role
}

// dropRole drops role, with its rights, when the test ends.
func dropRole(t testing.TB, role string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		pool, err := admin()
		if err == nil {
			_, err = pool.Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role)
		}
		if err != nil {
			t.Errorf("drop role %s: %v", role, err)
		}
	})
}
