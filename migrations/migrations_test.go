package migrations_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

func tables(t *testing.T, conn *pgx.Conn, schema string) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r' ORDER BY 1`, schema)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("list tables: %v", err)
	}
	return names
}

func connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.URL())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	return conn
}

// schema returns an unmigrated name, dropped when the test ends.
func schema(t *testing.T) string {
	t.Helper()
	name := pgtest.Name()
	pgtest.DropSchema(t, name)
	return name
}

func TestUpFromManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	name := schema(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = migrations.Up(t.Context(), pgtest.URL(), name) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("Up: %v", err)
	}
	applied, known, err := migrations.Version(t.Context(), pgtest.URL(), name)
	if err != nil || applied != known || known == 0 {
		t.Errorf("Version = %d of %d, %v; want all", applied, known, err)
	}
}

func TestDownRemovesEverythingAndUpBringsItBack(t *testing.T) {
	t.Parallel()
	name := schema(t)
	conn := connect(t)
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatalf("Up: %v", err)
	}
	before := tables(t, conn, name)
	if err := migrations.Down(t.Context(), pgtest.URL(), name, 0); err != nil {
		t.Fatalf("Down: %v", err)
	}
	if left := tables(t, conn, name); len(left) != 1 {
		t.Errorf("after Down there is %v, want only the version table", left)
	}
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatalf("second Up: %v", err)
	}
	if after := tables(t, conn, name); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("after Down and Up there is %v, want %v", after, before)
	}
	if err := migrations.Down(t.Context(), pgtest.URL(), name, 99); err == nil {
		t.Error("Down to a version that is ahead succeeded")
	}
}

// An older binary must keep running while a newer one has migrated already.
func TestUpLeavesANewerSchemaAlone(t *testing.T) {
	t.Parallel()
	name := schema(t)
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatalf("Up: %v", err)
	}
	conn := connect(t)
	if _, err := conn.Exec(t.Context(), "UPDATE "+name+".schema_version SET version = 1000"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Errorf("Up on a newer schema: %v", err)
	}
}

// Up of a schema at its version waits for no lock: another session holds the lock of all migrators here.
func TestUpOfAMigratedSchemaWaitsForNobody(t *testing.T) {
	t.Parallel()
	name := schema(t)
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), connect(t), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7265390517843162)"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return migrations.Up(ctx, pgtest.URL(), name)
	})
	if err != nil {
		t.Errorf("Up: %v", err)
	}
}

func TestPrintedSQLIsWhatUpApplies(t *testing.T) {
	t.Parallel()
	name := schema(t)
	var sql bytes.Buffer
	if err := migrations.Print(&sql, name); err != nil {
		t.Fatalf("Print: %v", err)
	}
	conn := connect(t)
	if _, err := conn.PgConn().Exec(t.Context(), sql.String()).ReadAll(); err != nil {
		t.Fatalf("run the printed SQL: %v", err)
	}
	applied, known, err := migrations.Version(t.Context(), pgtest.URL(), name)
	if err != nil || applied != known {
		t.Errorf("Version after the printed SQL = %d of %d, %v", applied, known, err)
	}
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Errorf("Up after the printed SQL: %v", err)
	}
}

func TestSchemaNamesAreChecked(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Upper", "a;drop", `a"b`, "pg_x", "information_schema", strings.Repeat("a", 64)} {
		if err := migrations.Up(t.Context(), pgtest.URL(), name); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("Up(%q) = %v, want an error that names the schema", name, err)
		}
	}
}

// The URL may be one that is written for a pool.
func TestUpTakesTheURLOfAPool(t *testing.T) {
	t.Parallel()
	url := pgtest.URL()
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	if err := migrations.Up(t.Context(), url+separator+"pool_max_conns=3", schema(t)); err != nil {
		t.Errorf("Up: %v", err)
	}
}

func TestErrorsDoNotShowThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://u:s3cret@127.0.0.1:1/x?connect_timeout=2", "postgres://u:s3cret@127.0.0.1:port/x"} {
		err := migrations.Up(t.Context(), url, "x")
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Up(%q) = %v, want an error without the password", url, err)
		}
	}
}

func TestUpFromKeepsAServicesOwnTablesNextToOurs(t *testing.T) {
	t.Parallel()
	name := schema(t)
	own := fstest.MapFS{"001_own.sql": {Data: []byte("CREATE TABLE {{.schema}}.own (id int)")}}
	if err := migrations.Up(t.Context(), pgtest.URL(), name); err != nil {
		t.Fatalf("Up: %v", err)
	}
	for range 2 {
		if err := migrations.UpFrom(t.Context(), pgtest.URL(), name, "own_version", own); err != nil {
			t.Fatalf("UpFrom: %v", err)
		}
	}
	if got := strings.Join(tables(t, connect(t), name), " "); !strings.Contains(got, "own own_version") || !strings.Contains(got, "outbox") {
		t.Errorf("tables %s", got)
	}
	if err := migrations.UpFrom(t.Context(), pgtest.URL(), name, "schema_version", own); err == nil {
		t.Error("UpFrom took sagamill's own version table")
	}
}

// A service whose name another service has had does not take the other's tables for its own.
func TestUpFromRefusesAnotherServicesTables(t *testing.T) {
	t.Parallel()
	name := schema(t)
	first := fstest.MapFS{"001_payment.sql": {Data: []byte("CREATE TABLE {{.schema}}.payment (id int) -- no semicolon")}}
	other := fstest.MapFS{"001_tables.sql": {Data: []byte("CREATE TABLE {{.schema}}.payment (key text);")}}
	if err := migrations.UpFrom(t.Context(), pgtest.URL(), name, "shop_version", first); err != nil {
		t.Fatalf("UpFrom: %v", err)
	}
	first["002_item's.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE {{.schema}}.item (id int);")}
	if err := migrations.UpFrom(t.Context(), pgtest.URL(), name, "shop_version", first); err != nil {
		t.Errorf("UpFrom with one more: %v", err)
	}
	const want = "the service's migration 1 was applied from 001_payment.sql, and is 001_tables.sql now: another service"
	if err := migrations.UpFrom(t.Context(), pgtest.URL(), name, "shop_version", other); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("UpFrom of another service: %v, want %q", err, want)
	}
	if _, _, err := migrations.VersionFrom(t.Context(), pgtest.URL(), name, "shop_version", other); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("VersionFrom of another service: %v, want %q", err, want)
	}

	// A table from before names were recorded works on, and records what comes then.
	if _, err := connect(t).Exec(t.Context(), "ALTER TABLE "+name+".shop_version DROP COLUMN names"); err != nil {
		t.Fatal(err)
	}
	if applied, known, err := migrations.VersionFrom(t.Context(), pgtest.URL(), name, "shop_version", first); applied != 2 || known != 2 || err != nil {
		t.Errorf("VersionFrom of an older table = %d, %d, %v", applied, known, err)
	}
	first["003_more.sql"] = &fstest.MapFile{Data: []byte("CREATE TABLE {{.schema}}.more (id int);")}
	for range 2 {
		if err := migrations.UpFrom(t.Context(), pgtest.URL(), name, "shop_version", first); err != nil {
			t.Errorf("UpFrom of an older table: %v", err)
		}
	}
	var names string
	if err := connect(t).QueryRow(t.Context(), "SELECT names::text FROM "+name+".shop_version").Scan(&names); err != nil || names != `{"3": "003_more.sql"}` {
		t.Errorf("recorded %s, %v", names, err)
	}
}

// A server whose packets are lost is given up soon, unless the URL says how long to wait.
func TestConnectTimeout(t *testing.T) {
	t.Parallel()
	for databaseURL, want := range map[string]time.Duration{
		"postgres://h/d?pool_max_conns=3":   10 * time.Second,
		"postgres://h/d?connect_timeout=60": time.Minute,
	} {
		config, err := migrations.ParseURL(databaseURL)
		if err != nil || config.ConnectTimeout != want {
			t.Errorf("%s: %v, %v; want %v", databaseURL, config.ConnectTimeout, err, want)
		}
	}
}
