package roletest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A forge tries statements as roles.
type forge struct {
	*world
	tried int
}

// refuses reports a statement that the server does not refuse for want of a right. What it
// has done is rolled back.
func (f *forge) refuses(pool *pgxpool.Pool, role, statement string) {
	f.t.Helper()
	f.tried++
	tx, err := pool.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	_, err = tx.Exec(f.t.Context(), f.bind(strings.ReplaceAll(statement, "{prefix}", f.Prefix)), pgx.QueryExecModeSimpleProtocol)
	_ = tx.Rollback(context.WithoutCancel(f.t.Context()))
	if !denied(err) {
		f.t.Errorf("%s: %s: %v; want a refusal, %s", role, statement, err, roletest.Denied)
	}
}

// A relation is a table or a sequence of the schema.
type relation struct {
	Name    string
	Kind    string
	Columns []string
}

func (f *forge) relations() []relation {
	f.t.Helper()
	rows, _ := f.Admin.Query(f.t.Context(), `
SELECT relname, relkind::text, ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum)
FROM pg_class c WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'p', 'S') ORDER BY relname`, f.Schema)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relation])
	if err != nil || len(all) < 20 {
		f.t.Fatalf("%d relations, %v", len(all), err)
	}
	return all
}

// attempts returns the statements that exercise a privilege on r: for those that columns
// may have, one for each column. on says whether a role has it, on a column or "" for all.
func (r relation) attempts(granted func(privilege, column string) bool) (statements []string) {
	add := func(privilege, column, statement string) {
		if !granted(privilege, "") && (column == "" || !granted(privilege, column)) {
			statements = append(statements, statement)
		}
	}
	name := "{schema}." + r.Name
	if r.Kind == "S" {
		if !granted("UPDATE", "") { // which allows it too
			add("USAGE", "", "SELECT nextval('"+name+"')")
		}
		add("SELECT", "", "SELECT last_value FROM "+name)
		add("UPDATE", "", "SELECT setval('"+name+"', 1)")
		return statements
	}
	add("DELETE", "", "DELETE FROM "+name)
	add("TRUNCATE", "", "TRUNCATE "+name)
	for _, column := range r.Columns {
		add("INSERT", column, "INSERT INTO "+name+" ("+column+") VALUES (DEFAULT)")
		add("SELECT", column, "SELECT "+column+" FROM "+name)
		add("UPDATE", column, "UPDATE "+name+" SET "+column+" = DEFAULT")
	}
	add("TRIGGER", "", "CREATE TRIGGER mine BEFORE UPDATE ON "+name+" FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()")
	for _, ddl := range []string{"ALTER TABLE %s ADD COLUMN mine int", "DROP TABLE %s", "COMMENT ON TABLE %s IS ''", "CREATE INDEX ON %s ((1))", "CREATE RULE mine AS ON DELETE TO %s DO INSTEAD NOTHING", "ALTER TABLE %s OWNER TO CURRENT_USER"} {
		statements = append(statements, fmt.Sprintf(ddl, name))
	}
	return statements
}

// Every statement on every table and sequence that a role has not been granted is refused.
func TestWhatARoleIsNotGrantedIsRefused(t *testing.T) {
	t.Parallel()
	f := &forge{world: newWorld(t)}
	relations := f.relations()
	for _, role := range roletest.Names() {
		grants := f.Grants(t, role)
		for _, r := range relations {
			on := "{schema}." + r.Name
			if r.Kind == "S" {
				on = "SEQUENCE " + on
			}
			granted := func(privilege, column string) bool {
				if column != "" {
					privilege += " (" + column + ")"
				}
				return slices.Contains(grants, roletest.Grant{Privilege: privilege, On: on})
			}
			for _, statement := range r.attempts(granted) {
				f.refuses(f.pools[role], role, statement)
			}
		}
		for _, statement := range inSchema {
			f.refuses(f.pools[role], role, statement)
		}
	}
	if f.tried < 1000 {
		t.Errorf("%d statements were tried", f.tried)
	}
}

// Even with all grants, only the owner can change or remove a row of the journal, or forge one, and only an
// operator can write one.
func TestTheJournalCannotBeForged(t *testing.T) {
	t.Parallel()
	f := &forge{world: newWorld(t)}
	const row = "INSERT INTO {schema}.operator_journal (who, verb, what, ids, why%s) VALUES ('ann', 'dead discard', '{}', '{1}', ''%s)"
	for _, role := range roletest.Names() {
		for _, statement := range []string{
			fmt.Sprintf(row, ", at", ", '2020-01-01'"), fmt.Sprintf(row, ", db_user", ", 'bob'"),
			"UPDATE {schema}.operator_journal SET who = 'bob'", "DELETE FROM {schema}.operator_journal", "TRUNCATE {schema}.operator_journal",
		} {
			f.refuses(f.pools[role], role, statement)
		}
		if role != "operator" {
			f.refuses(f.pools[role], role, fmt.Sprintf(row, "", ""))
		}
	}
	if _, err := f.pools["operator"].Exec(t.Context(), f.bind(fmt.Sprintf(row, "", ""))); err != nil {
		t.Errorf("the operator's own row: %v", err)
	}
	var by string
	if err := f.Admin.QueryRow(t.Context(), f.bind("SELECT db_user FROM {schema}.operator_journal")).Scan(&by); err != nil || by != f.pools["operator"].Config().ConnConfig.User {
		t.Errorf("the row says that %q had logged in, %v; want %q", by, err, f.pools["operator"].Config().ConnConfig.User)
	}
}

// inSchema is what only the owner may do in a schema.
var inSchema = []string{
	"CREATE TABLE {schema}.mine (id int)",
	"CREATE VIEW {schema}.mine AS SELECT 1",
	"CREATE SEQUENCE {schema}.mine",
	"CREATE TYPE {schema}.mine AS (id int)",
	"CREATE FUNCTION {schema}.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
	"ALTER SEQUENCE {schema}.outbox_leaf RESTART",
	"ALTER SCHEMA {schema} RENAME TO mine",
	"ALTER SCHEMA {schema} OWNER TO CURRENT_USER",
	"DROP SCHEMA {schema} CASCADE",
	"ALTER DEFAULT PRIVILEGES FOR ROLE {prefix}_owner GRANT SELECT ON TABLES TO PUBLIC",
	"SET ROLE {prefix}_owner",
}

// outside is what no role may do, the owner included.
var outside = []string{
	"SELECT * FROM {other}.inbox",
	"SELECT * FROM {other}.idempotency_key",
	"INSERT INTO {other}.outbox DEFAULT VALUES",
	"CREATE TABLE {other}.mine (id int)",
	"SELECT * FROM business.account",
	"UPDATE business.account SET balance = 0",
	"DELETE FROM business.account",
	"CREATE TABLE business.mine (id int)",
	"CREATE SCHEMA mine",
	"CREATE ROLE mine",
	"CREATE EXTENSION file_fdw",
	"ALTER ROLE postgres PASSWORD 'x'",
	"SET ROLE postgres",
	"SET SESSION AUTHORIZATION postgres",
	"SET ROLE {other_prefix}_owner",
	"SET session_replication_role = replica",
	"SELECT * FROM pg_authid",
	"SELECT pg_reload_conf()",
	"SELECT pg_read_file('PG_VERSION')",
	"SELECT pg_ls_dir('.')",
	"SELECT lo_import('/etc/passwd')",
	"COPY (SELECT 1) TO PROGRAM 'true'",
	"COPY (SELECT 1) TO '/tmp/mine'",
	"SELECT pg_terminate_backend({superuser})",
	"SELECT pg_create_physical_replication_slot('mine')",
}

// No role has access to another service's schema, to business tables without a grant, to another role, or to
// the server.
func TestNoRoleLeavesItsSchema(t *testing.T) {
	t.Parallel()
	f := &forge{world: newWorld(t)}
	other := roletest.New(t, f.Server, f.Admin, pgtest.Name())
	super, err := f.Admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer super.Release()
	const secret = "a statement of somebody else"
	if _, err := super.Exec(t.Context(), "SELECT '"+secret+"'", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("{other}", other.Schema, "{other_prefix}", other.Prefix, "{superuser}", fmt.Sprint(super.Conn().PgConn().PID()))
	all := append(roletest.Names(), "owner")
	for _, role := range all {
		pool := f.pools[role]
		if pool == nil {
			pool = f.Pool(t, role, f.deny)
		}
		for _, statement := range outside {
			f.refuses(pool, role, names.Replace(statement))
		}
		for _, another := range all {
			if another != role {
				f.refuses(pool, role, "SET ROLE {prefix}_"+another)
			}
		}
		var seen int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE position($1 IN query) > 0", secret).Scan(&seen)
		if err != nil || seen != 0 {
			t.Errorf("%s sees %d statements of others, %v", role, seen, err)
		}
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.refusesSystem(conn, role)
		conn.Release()
	}
	var seen int
	if err := f.Admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE position($1 IN query) > 0", secret).Scan(&seen); err != nil || seen != 1 {
		t.Errorf("the superuser sees %d such statements, %v", seen, err)
	}
}

// refusesSystem tries what cannot be in a transaction.
func (f *forge) refusesSystem(conn *pgxpool.Conn, role string) {
	f.t.Helper()
	for _, statement := range []string{"ALTER SYSTEM SET work_mem = '1GB'", "CREATE DATABASE mine"} {
		if _, err := conn.Exec(f.t.Context(), statement); !denied(err) {
			f.t.Errorf("%s: %s: %v; want a refusal, %s", role, statement, err, roletest.Denied)
		}
	}
}
