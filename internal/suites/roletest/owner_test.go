package roletest_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/suites/roletest"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// An installation is a schema that an ordinary role has made, with a table of the
// service's own.
type installation struct {
	*roletest.Roles
	app  string // who made it
	pool *pgxpool.Pool
}

// orders is the service's own table, and stock what its next release adds.
var (
	orders = fstest.MapFS{"001_orders.sql": {Data: []byte("CREATE TABLE {{.schema}}.orders (id bigserial, what text)")}}
	stock  = fstest.MapFS{
		"001_orders.sql": orders["001_orders.sql"],
		"002_stock.sql":  {Data: []byte("ALTER TABLE {{.schema}}.orders ADD COLUMN n int; CREATE TABLE {{.schema}}.stock (n int)")},
	}
)

func newInstallation(t *testing.T) *installation {
	t.Helper()
	server := pgservertest.New(t)
	i := &installation{app: pgtest.Name()}
	i.Roles = &roletest.Roles{Server: server, Admin: pgtest.Pool(t, server.URL()), Schema: pgtest.Name(), Prefix: pgtest.Name()}
	i.Exec(t, "CREATE ROLE "+i.app+" LOGIN CREATEROLE; GRANT CREATE ON DATABASE postgres TO "+i.app)
	i.pool = pgtest.Pool(t, server.URLOf(i.app))
	if err := migrations.Up(t.Context(), server.URLOf(i.app), i.Schema); err != nil {
		t.Fatal(err)
	}
	i.own(t, i.app, orders)
	return i
}

func (i *installation) own(t *testing.T, login string, files fstest.MapFS) {
	t.Helper()
	if err := migrations.UpFrom(t.Context(), i.Server.URLOf(login), i.Schema, "orders_version", files); err != nil {
		t.Fatal(err)
	}
}

// try runs a statement as pool's role.
func (i *installation) try(t *testing.T, pool *pgxpool.Pool, statement string) error {
	t.Helper()
	_, err := pool.Exec(t.Context(), sqlschema.Bind(i.Schema, statement), pgx.QueryExecModeSimpleProtocol)
	return err
}

// others lists what in the schema does not belong to the owner.
func (i *installation) others(t *testing.T) string {
	t.Helper()
	rows, _ := i.Admin.Query(t.Context(), `SELECT relname || ' ' || relowner::regrole FROM pg_class
		WHERE relnamespace = $1::text::regnamespace AND relowner <> $2::text::regrole
		UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = $1::text::regnamespace AND proowner <> $2::text::regrole
		UNION ALL SELECT nspname FROM pg_namespace WHERE nspname = $1 AND nspowner <> $2::text::regrole`, i.Schema, i.Role("owner"))
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

// rights are what others than the owner have in the schema, and the defaults of what will be
// made.
func (i *installation) rights(t *testing.T) (all string) {
	t.Helper()
	err := i.Admin.QueryRow(t.Context(), `
WITH relation AS (SELECT * FROM pg_class WHERE relnamespace = $1::text::regnamespace),
acl AS (
	SELECT relname::text AS name, relacl AS acl FROM relation
	UNION ALL SELECT relname || '.' || attname, attacl FROM relation JOIN pg_attribute ON attrelid = relation.oid
	UNION ALL SELECT proname, proacl FROM pg_proc WHERE pronamespace = $1::text::regnamespace
	UNION ALL SELECT nspname, nspacl FROM pg_namespace WHERE nspname = $1)
SELECT string_agg(line, E'\n' ORDER BY line) FROM (
	SELECT concat_ws(' ', name, grantee::regrole, privilege_type) FROM acl, aclexplode(acl) WHERE grantee <> $2::text::regrole
	UNION ALL SELECT concat_ws(' ', defaclnamespace, defaclobjtype, defaclacl) FROM pg_default_acl) lines (line)`,
		i.Schema, i.Role("owner")).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// deploy makes the login role that migrates, as the SQL says.
func (i *installation) deploy(t *testing.T) string {
	t.Helper()
	login := i.Member(t, "owner")
	i.Exec(t, "ALTER ROLE "+login+" SET role = '"+i.Role("owner")+"'")
	return login
}

// The creator of an existing installation, a role that is not a superuser, hands it over to the owner role.
// From then on the owner migrates, and needs no right on the database.
func TestOwnershipMoves(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	if err := i.try(t, i.pool, i.SQL(t)); err != nil {
		t.Fatalf("as who made the schema: %v", err)
	}
	if got := i.others(t); got != "" {
		t.Errorf("not the owner's: %s", got)
	}
	login := i.deploy(t)
	i.Exec(t, "ALTER ROLE "+i.app+" NOCREATEROLE; REVOKE CREATE ON DATABASE postgres FROM "+i.app)
	url := i.Server.URLOf(login)
	reader := i.Pool(t, "reader", func(error) {})
	if err := i.try(t, reader, "SELECT FROM {schema}.saga"); err != nil {
		t.Errorf("a reader: %v", err)
	}

	i.own(t, login, stock)
	for _, version := range []int32{3, 0} {
		if err := migrations.Down(t.Context(), url, i.Schema, version); err != nil {
			t.Fatal(err)
		}
		if err := migrations.Up(t.Context(), url, i.Schema); err != nil {
			t.Fatalf("a later migration from %d: %v", version, err)
		}
		if got := i.others(t); got != "" {
			t.Errorf("not the owner's after a migration from %d: %s", version, got)
		}
		for _, table := range []string{"saga", "stock"} {
			for _, role := range roletest.Names() {
				if err := i.try(t, i.Pool(t, role, func(error) {}), "SELECT FROM {schema}."+table); !denied(err) {
					t.Errorf("%s reads the new table %s: %v", role, table, err)
				}
			}
		}
		if err := i.try(t, pgtest.Pool(t, url), i.SQL(t)); err != nil {
			t.Fatalf("again, as the owner: %v", err)
		}
		if err := i.try(t, reader, "SELECT FROM {schema}.saga"); err != nil {
			t.Errorf("a reader, after it was run again: %v", err)
		}
	}
	if applied, known, err := migrations.Version(t.Context(), url, i.Schema); err != nil || applied != known {
		t.Errorf("Version as the owner = %d of %d, %v", applied, known, err)
	}
}

// The index outbox_search has no summary of the first range of a leaf: each row that is written there would pay for it. The
// relay does not own the index, and removes the summary all the same when it empties a leaf.
func TestNoRowPaysForTheSearchOfTheLog(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	check := func(when string) {
		t.Helper()
		for leaf, table := range []string{"outbox_0", "outbox_1", "outbox_2", "outbox_other"} {
			i.Exec(t, sqlschema.Bind(i.Schema, fmt.Sprintf(`INSERT INTO {schema}.outbox
				(message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, leaf)
				VALUES (gen_random_uuid(), 't', '', 's', 'k', '', '', '', '', '', '', '{}', %d)`, leaf)))
			var made int
			err := i.Admin.QueryRow(t.Context(), `SELECT brin_summarize_range(indexrelid, 0) FROM pg_index JOIN pg_class c ON c.oid = indexrelid
				JOIN pg_am a ON a.oid = relam WHERE amname = 'brin' AND indrelid = $1::text::regclass`, i.Schema+"."+table).Scan(&made)
			if err != nil || made != 1 {
				t.Errorf("%s %s has a summary of its first range: %d, %v", when, table, made, err)
			}
		}
	}
	check("after the migration")
	url := i.Server.URLOf(i.app)
	if err := migrations.Down(t.Context(), url, i.Schema, 6); err != nil {
		t.Fatal(err)
	}
	i.Exec(t, sqlschema.Bind(i.Schema, `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload, leaf)
		SELECT gen_random_uuid(), 't', '', 's', 'k', '', '', '', '', '', '', repeat('x', 400)::bytea, 1 FROM generate_series(1, 4000)`))
	if err := migrations.Up(t.Context(), url, i.Schema); err != nil {
		t.Fatal(err)
	}
	var first, last int
	err := i.Admin.QueryRow(t.Context(), `SELECT brin_summarize_range(indexrelid, 0), brin_summarize_range(indexrelid, pg_relation_size(indrelid) / 8192 - 1)
		FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam WHERE amname = 'brin' AND indrelid = $1::text::regclass`, i.Schema+".outbox_1").Scan(&first, &last)
	if err != nil || first != 0 || last != 1 {
		t.Errorf("of a log with rows, the migration leaves %d full ranges without a summary, and %d last ranges, %v; want 0, 1", first, last, err)
	}
	if err := i.try(t, i.pool, i.SQL(t)); err != nil {
		t.Fatal(err)
	}
	relay := i.Pool(t, "relay", func(error) {})
	for _, table := range []string{"outbox_0", "outbox_1", "outbox_2", "outbox_other"} {
		if err := i.try(t, relay, "TRUNCATE {schema}."+table); err != nil {
			t.Error(err)
		}
	}
	check("after a relay has emptied it,")
	i.Exec(t, sqlschema.Bind(i.Schema, "ALTER FUNCTION {schema}.outbox_forget_summary() OWNER TO "+i.Role("reader")))
	if err := i.try(t, relay, "TRUNCATE {schema}.outbox_0"); err != nil {
		t.Errorf("with a function of another owner: %v", err)
	}
}

// psql runs the SQL any number of times. Afterwards the rights are those of the SQL: rights that were added
// meanwhile are gone.
func TestTheRolesAreWhatIsPrinted(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	i.psql(t)
	want := i.rights(t)
	i.Exec(t, strings.NewReplacer("{schema}", i.Schema, "{reader}", i.Role("reader"), "{owner}", i.Role("owner")).Replace(`
		GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {reader}, PUBLIC;
		GRANT SELECT (resp_body), UPDATE (key) ON {schema}.idempotency_key TO {reader};
		GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {reader}, PUBLIC;
		GRANT ALL ON SCHEMA {schema} TO {reader}, PUBLIC;
		REVOKE SELECT ON {schema}.inbox FROM {reader};
		REVOKE ALL ON {schema}.orders, {schema}.orders_version FROM {reader}, PUBLIC;
		REVOKE ALL ON {schema}.orders_id_seq FROM {reader}, PUBLIC;
		ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT SELECT ON TABLES TO {reader}, PUBLIC;
		ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT SELECT ON SEQUENCES TO PUBLIC;
		ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT EXECUTE ON FUNCTIONS TO PUBLIC`))
	if i.rights(t) == want {
		t.Error("the rights are what they were")
	}
	i.psql(t)
	if diff := cmp.Diff(want, i.rights(t)); diff != "" {
		t.Errorf("rights after the second time (-first +second):\n%s", diff)
	}
}

// psql runs the SQL as the superuser.
func (i *installation) psql(t *testing.T) {
	t.Helper()
	psql := exec.Command(i.Server.Program(t, "psql"), "-X", "-v", "ON_ERROR_STOP=1", i.Server.URL())
	psql.Stdin = strings.NewReader(i.SQL(t))
	if out, err := psql.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

// Invalid input is refused, and changes nothing.
func TestRolesAreRefused(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	for _, tt := range []struct{ name, before, want string }{
		{"older tables", "UPDATE {schema}.schema_version SET version = 3", "has had 3 of 13 migrations: run sagamill migrate up first"},
		{"no tables", "ALTER TABLE {schema}.schema_version RENAME TO other", "has had 0 of 13"},
		{"a role that may log in", "CREATE ROLE {prefix}_reader LOGIN", "_reader exists, and may log in"},
		{"a superuser", "CREATE ROLE {prefix}_consumer SUPERUSER", "_consumer exists"},
		{"a member of a role of the server", "CREATE ROLE {prefix}_reader IN ROLE pg_read_all_data", "{prefix}_reader is a member of pg_read_all_data: revoke that"},
		{"a member of another of the roles", "CREATE ROLE {prefix}_operator; CREATE ROLE {prefix}_entry IN ROLE {prefix}_operator", "{prefix}_entry is a member of {prefix}_operator: revoke that"},
		{"an owner with a member", "CREATE ROLE {prefix}_owner; CREATE ROLE {prefix}_other IN ROLE {prefix}_owner", "{prefix}_owner has a member already, {prefix}_other,"},
		{"a reader with a member", "CREATE ROLE {prefix}_reader; CREATE ROLE {prefix}_other IN ROLE {prefix}_reader", "{prefix}_reader has a member already, {prefix}_other,"},
	} {
		before := strings.ReplaceAll(sqlschema.Bind(i.Schema, tt.before), "{prefix}", i.Prefix)
		tt.want = strings.ReplaceAll(tt.want, "{prefix}", i.Prefix)
		err := pgx.BeginFunc(t.Context(), i.Admin, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			body := strings.ReplaceAll(strings.ReplaceAll(i.SQL(t), "\nBEGIN;\n", "\n"), "\nCOMMIT;\n", "\n")
			_, err := tx.Exec(t.Context(), body, pgx.QueryExecModeSimpleProtocol)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	var left int
	if err := i.Admin.QueryRow(context.WithoutCancel(t.Context()), "SELECT count(*) FROM pg_roles WHERE starts_with(rolname, $1)", i.Prefix).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d roles are left, %v", left, err)
	}
}

// The role that runs the SQL the first time may be a member of the roles, as their creator is since
// PostgreSQL 16.
func TestWhoMadeTheRolesIsTheirMember(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	i.Exec(t, "CREATE ROLE "+i.Role("owner")+" ROLE "+i.app)
	for _, name := range roletest.Names() {
		i.Exec(t, "CREATE ROLE "+i.Role(name)+" ADMIN "+i.app)
	}
	if err := i.try(t, i.pool, i.SQL(t)); err != nil {
		t.Fatal(err)
	}
	if got := i.others(t); got != "" {
		t.Errorf("not the owner's: %s", got)
	}
}

// Once the schema is the owner's, login roles are members of the roles; none of these may be
// a member of another.
func TestMembersKeepTheirRoles(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	i.psql(t)
	for _, name := range append(roletest.Names(), "owner") {
		i.Member(t, name)
	}
	reader := i.Pool(t, "reader", func(error) {})
	i.psql(t)
	if err := i.try(t, reader, "SELECT FROM {schema}.saga"); err != nil {
		t.Errorf("a reader, after it was run again: %v", err)
	}

	entry, operator := i.Role("entry"), i.Role("operator")
	i.Exec(t, "GRANT "+operator+" TO "+entry)
	i.Exec(t, "GRANT ALL ON "+i.Schema+".saga TO "+entry)
	want := i.rights(t)
	conn, err := pgx.Connect(t.Context(), i.Server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), i.SQL(t), pgx.QueryExecModeSimpleProtocol)
	if err == nil || !strings.Contains(err.Error(), entry+" is a member of "+operator) {
		t.Errorf("%v, want that %s is a member of %s", err, entry, operator)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, i.rights(t)); diff != "" {
		t.Errorf("rights after the refusal (-before +after):\n%s", diff)
	}
	i.Exec(t, "REVOKE "+operator+" FROM "+entry)
	i.psql(t)
}

func TestNamesOfRolesAreChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ schema, prefix, want string }{
		{"a;b", "", "schema"}, {"", "a;b", "prefix"}, {"", "pg", "prefix"}, {"", "Upper", "prefix"}, {"", strings.Repeat("a", 55), "prefix"},
	} {
		var out bytes.Buffer
		if err := migrations.Roles(&out, tt.schema, tt.prefix); err == nil || !strings.Contains(err.Error(), tt.want) || out.Len() > 0 {
			t.Errorf("Roles(%q, %q) = %v and %d bytes, want an error that names the %s", tt.schema, tt.prefix, err, out.Len(), tt.want)
		}
	}
	var out bytes.Buffer
	if err := migrations.Roles(&out, "", ""); err != nil || !strings.Contains(out.String(), "GRANT USAGE ON SCHEMA sagamill TO sagamill_entry,") || strings.Contains(out.String(), "{") {
		t.Errorf("Roles without names: %v\n%s", err, out.String())
	}
}
