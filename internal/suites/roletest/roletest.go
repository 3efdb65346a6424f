// Package roletest gives tests the database roles of a schema, as [migrations.Roles] prints them, and takes
// rights away from them.
package roletest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// Denied is PostgreSQL's error code for a missing right.
const Denied = "42501"

// Names are the names, without the prefix, of the roles that get rights.
func Names() []string { return []string{"entry", "relay", "consumer", "operator", "reader"} }

// Roles are the roles of one schema, on a private server.
type Roles struct {
	Server *pgservertest.Server
	Admin  *pgxpool.Pool // the superuser's
	Schema string
	Prefix string
}

// New migrates schema, unless that is done, and makes its roles.
func New(t testing.TB, server *pgservertest.Server, admin *pgxpool.Pool, schema string) *Roles {
	t.Helper()
	r := &Roles{Server: server, Admin: admin, Schema: schema, Prefix: pgtest.Name()}
	if err := migrations.Up(t.Context(), server.URL(), schema); err != nil {
		t.Fatal(err)
	}
	r.Exec(t, r.SQL(t))
	return r
}

// SQL returns the SQL that makes the roles.
func (r *Roles) SQL(t testing.TB) string {
	t.Helper()
	var sql strings.Builder
	if err := migrations.Roles(&sql, r.Schema, r.Prefix); err != nil {
		t.Fatal(err)
	}
	return sql.String()
}

// Exec runs statements as the superuser.
func (r *Roles) Exec(t testing.TB, statements string) {
	t.Helper()
	if _, err := r.Admin.Exec(context.WithoutCancel(t.Context()), statements, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%.200s: %v", statements, err)
	}
}

// Role returns the full name of a role.
func (r *Roles) Role(name string) string { return r.Prefix + "_" + name }

// Member makes a login role that is a member of a role, in the way that the SQL says, and
// returns its name.
func (r *Roles) Member(t testing.TB, name string) string {
	t.Helper()
	login := pgtest.Name()
	r.Exec(t, strings.NewReplacer("{login}", login, "{role}", r.Role(name)).Replace(
		"CREATE ROLE {login} LOGIN; GRANT {role} TO {login}; ALTER ROLE {login} SET search_path = pg_catalog"))
	return login
}

// Pool returns the pool of a new member of a role. It calls denied for each right that the server denies the
// member.
func (r *Roles) Pool(t testing.TB, name string, denied func(error)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(r.Server.URLOf(r.Member(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 12
	usual := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == Denied {
			denied(fmt.Errorf("%s: %w", name, err))
		}
		return usual(conn, err)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// A Grant is one privilege of a role on something, in whose name {schema} stands for the
// schema.
type Grant struct{ Privilege, On string }

// String returns the part of a GRANT or REVOKE between that word and the role.
func (g Grant) String() string { return g.Privilege + " ON " + g.On }

// sqlListGrants lists the grants of the role $2 on the schema $1 and on objects in it, each column
// separately, in the form of GRANT and REVOKE.
const sqlListGrants = `
WITH relation AS (SELECT *, format('%s{schema}.%I', CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END, relname) AS name
	FROM pg_class WHERE relnamespace = $1::text::regnamespace)
SELECT a.privilege_type, 'SCHEMA {schema}' FROM pg_namespace, aclexplode(nspacl) a WHERE nspname = $1::text AND a.grantee = $2::text::regrole
UNION ALL
SELECT a.privilege_type, name FROM relation, aclexplode(relacl) a WHERE a.grantee = $2::text::regrole
UNION ALL
SELECT format('%s (%I)', a.privilege_type, attname), name FROM relation JOIN pg_attribute ON attrelid = relation.oid, aclexplode(attacl) a WHERE a.grantee = $2::text::regrole
ORDER BY 2, 1`

// Grants lists the grants of a role, as the server has them.
func (r *Roles) Grants(t testing.TB, name string) []Grant {
	t.Helper()
	rows, _ := r.Admin.Query(t.Context(), sqlListGrants, r.Schema, r.Role(name))
	grants, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Grant])
	if err != nil || len(grants) == 0 {
		t.Fatalf("grants of %s: %d, %v", name, len(grants), err)
	}
	return grants
}

// Without runs do while a role lacks a grant.
func (r *Roles) Without(t testing.TB, name string, g Grant, do func()) {
	t.Helper()
	what := sqlschema.Bind(r.Schema, g.String())
	r.Exec(t, "REVOKE "+what+" FROM "+r.Role(name))
	defer r.Exec(t, "GRANT "+what+" TO "+r.Role(name))
	do()
}
