package migrations_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

const sqlInsertStep = "INSERT INTO {schema}.inbox (scope, key, step, n, state) VALUES ('s', $1, 'step', '', 'open')"

// writes returns a transaction of a new session that has written to the inbox and stays open.
func writes(t *testing.T, name, key string) pgx.Tx {
	t.Helper()
	tx, err := connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), strings.ReplaceAll(sqlInsertStep, "{schema}", name), key); err != nil {
		t.Fatal(err)
	}
	return tx
}

// A migration whose table a transaction keeps is given up, says so, and has done nothing.
func TestAMigrationBehindALongTransactionFails(t *testing.T) {
	t.Parallel()
	n := len(landed(t))
	name := at(t, pgtest.URL(), n)
	files := withNext(t, "CREATE TABLE {{.schema}}.next (); ALTER TABLE {{.schema}}.inbox ADD COLUMN next int")
	conn := connect(t)
	before := describe(t, conn, name)
	tx := writes(t, name, "long")
	err := migrations.UpPatiently(t.Context(), pgtest.URL(), name, files, 50*time.Millisecond, time.Millisecond, 3)
	if !errors.Is(err, migrations.ErrLocked) || !strings.Contains(err.Error(), "tried 3 times") || !strings.Contains(err.Error(), "_next.sql") {
		t.Errorf("Up = %v, want ErrLocked that names the migration", err)
	}
	if got := version(t, conn, name); got != n || strings.Join(describe(t, conn, name), "\n") != strings.Join(before, "\n") {
		t.Errorf("the schema is not as before; version %d, want %d", got, n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migrations.UpWith(t.Context(), pgtest.URL(), name, files); err != nil {
		t.Errorf("Up after the transaction: %v", err)
	}
}

// While a migration waits for a transaction to end, others get to the table; once it has
// ended, the migration does too. Several processes that migrate try one after the other.
func TestAMigrationThatWaitsLetsOthersPass(t *testing.T) {
	t.Parallel()
	n := len(landed(t))
	name := at(t, pgtest.URL(), n)
	files := withNext(t, "ALTER TABLE {{.schema}}.inbox ADD COLUMN next int")
	tx := writes(t, name, "long")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var migrating sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		migrating.Go(func() {
			errs[i] = migrations.UpPatiently(ctx, pgtest.URL(), name, files, 100*time.Millisecond, 200*time.Millisecond, 1000)
		})
	}
	watch := connect(t)
	for i := range 3 {
		faulttest.Await(t, "a migration waits for the table", func() (waits bool) {
			err := watch.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_locks WHERE relation = ($1 || '.inbox')::regclass AND NOT granted`, name).Scan(&waits)
			if err != nil {
				t.Fatal(err)
			}
			return waits
		}, nil)
		if err := writes(t, name, string(rune('a'+i))).Commit(t.Context()); err != nil { // which would wait for tx
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	migrating.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("Up: %v", err)
	}
	if got := version(t, watch, name); got != n+1 {
		t.Errorf("version %d, want %d", got, n+1)
	}
}

// The operator's lock_timeout takes precedence over ours.
func TestTheConnectionsOwnLockTimeoutCounts(t *testing.T) {
	t.Parallel()
	name := at(t, pgtest.URL(), len(landed(t)))
	files := withNext(t, "DO $$ BEGIN ASSERT current_setting('lock_timeout') = '7654ms'; END $$")
	separator := "?"
	if strings.Contains(pgtest.URL(), "?") {
		separator = "&"
	}
	if err := migrations.UpWith(t.Context(), pgtest.URL()+separator+"lock_timeout=7654", name, files); err != nil {
		t.Errorf("Up: %v", err)
	}
}

// The work of a migration outside of a transaction is not repeated.
func TestAMigrationOutsideOfATransactionIsTriedOnce(t *testing.T) {
	t.Parallel()
	name := at(t, pgtest.URL(), len(landed(t)))
	files := withNext(t, `---- tern: disable-tx ----
CREATE TABLE {{.schema}}.next ();
SET lock_timeout = 50;
ALTER TABLE {{.schema}}.inbox ADD COLUMN next int;`)
	writes(t, name, "long")
	err := migrations.UpPatiently(t.Context(), pgtest.URL(), name, files, time.Minute, time.Millisecond, 3)
	if !errors.Is(err, migrations.ErrLocked) || strings.Contains(err.Error(), "tried") {
		t.Errorf("Up = %v, want ErrLocked after one attempt", err)
	}
}

// Of two binaries that migrate at once, the older knows one migration less.
func TestTwoBinariesMigrateAtOnce(t *testing.T) {
	t.Parallel()
	n := len(landed(t))
	name := schema(t)
	files := withNext(t, "ALTER TABLE {{.schema}}.inbox ADD COLUMN next int")
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			if i%2 == 0 {
				errs[i] = migrations.UpWith(t.Context(), pgtest.URL(), name, files)
			} else {
				errs[i] = migrations.Up(t.Context(), pgtest.URL(), name)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("Up: %v", err)
	}
	if got := version(t, connect(t), name); got != n+1 {
		t.Errorf("version %d, want %d", got, n+1)
	}
}

// A migrator waits for its turn in no statement: its snapshot would keep the migrator that has the turn from
// building an index.
func TestAnIndexIsBuiltWhileAnotherProcessWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	n := len(landed(t))
	name := at(t, pgtest.URL(), n)
	files := withNext(t, "---- tern: disable-tx ----\nCREATE INDEX CONCURRENTLY next ON {{.schema}}.inbox (state);")
	tx := writes(t, name, "long") // which the index waits for
	watch := connect(t)
	errs := make(chan error, 2)
	up := func() { errs <- migrations.UpWith(t.Context(), pgtest.URL(), name, files) }
	sees := func(what, condition string) {
		faulttest.Await(t, what, func() (seen bool) {
			err := watch.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "+condition+")").Scan(&seen)
			return seen && err == nil
		}, nil)
	}
	go up()
	sees("the index is being built", "query LIKE '%CONCURRENTLY next ON "+name+".%' AND wait_event IS NOT NULL")
	go up()
	sees("the other waits for its turn", "query LIKE '%pg_try_advisory_lock(726539051, hashtext(''"+name+"''%'")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Errorf("Up: %v", err)
	}
	var valid bool
	if err := watch.QueryRow(t.Context(), "SELECT indisvalid FROM pg_index WHERE indexrelid = $1::regclass", name+".next").Scan(&valid); err != nil || !valid {
		t.Errorf("the index is valid: %t, %v", valid, err)
	}
	if got := version(t, watch, name); got != n+1 {
		t.Errorf("version %d, want %d", got, n+1)
	}
}

// The row of the version is waited for no longer than any other lock, and with no table in hand.
func TestAVersionThatSomebodyKeepsIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	name := at(t, pgtest.URL(), len(landed(t)))
	files := withNext(t, "ALTER TABLE {{.schema}}.inbox ADD COLUMN next int")
	tx, err := connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT version FROM "+name+".schema_version FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.UpPatiently(t.Context(), pgtest.URL(), name, files, 50*time.Millisecond, time.Millisecond, 3); !errors.Is(err, migrations.ErrLocked) {
		t.Errorf("Up = %v, want ErrLocked", err)
	}
}

// A lock_timeout of the connection's own bounds the waits of a migration, not the one for
// its turn.
func TestATurnIsWaitedForWhateverTheLockTimeout(t *testing.T) {
	t.Parallel()
	name := at(t, pgtest.URL(), len(landed(t)))
	files := withNext(t, "ALTER TABLE {{.schema}}.inbox ADD COLUMN next int")
	separator := "?"
	if strings.Contains(pgtest.URL(), "?") {
		separator = "&"
	}
	at := pgtest.URL() + separator + "lock_timeout=50"
	watch, tx := connect(t), writes(t, name, "long")
	errs := make(chan error, 2)
	up := func() { errs <- migrations.UpWith(t.Context(), at, name, files) }
	go up()
	go up()
	faulttest.Await(t, "one has been refused a lock, and the other waits", func() (seen bool) {
		err := watch.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock(726539051, hashtext(''"+name+"''%')").Scan(&seen)
		return seen && err == nil
	}, nil)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Errorf("Up: %v", err)
	}
}

// The server ends a migrator that hangs while it holds locks, and one whose machine is lost.
func TestAMigrationLimitsItsOwnSilence(t *testing.T) {
	t.Parallel()
	name := at(t, pgtest.URL(), len(landed(t)))
	files := withNext(t, `DO $$ BEGIN
		ASSERT current_setting('idle_in_transaction_session_timeout') = '15s' AND current_setting('client_connection_check_interval') = '5s';
	END $$`)
	if err := migrations.UpWith(t.Context(), pgtest.URL(), name, files); err != nil {
		t.Errorf("Up: %v", err)
	}
}

// To look at a schema makes none.
func TestAVersionIsReadWithoutMakingAnything(t *testing.T) {
	t.Parallel()
	name := pgtest.Name()
	applied, known, err := migrations.Version(t.Context(), pgtest.URL(), name)
	if applied != 0 || known == 0 || err != nil {
		t.Errorf("Version = %d, %d, %v", applied, known, err)
	}
	var there bool
	if err := connect(t).QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", name).Scan(&there); err != nil || there {
		t.Errorf("the schema is there: %t, %v", there, err)
	}
}

// Parts that are not named are not migrated.
func TestWhatIsNotThereIsNotMigrated(t *testing.T) {
	t.Parallel()
	if err := migrations.Up(t.Context(), "", pgtest.Name()); err == nil || !strings.Contains(err.Error(), "no database URL") {
		t.Errorf("Up without a URL: %v", err)
	}
	if err := migrations.Down(t.Context(), pgtest.URL(), pgtest.Name(), 0); err == nil || !strings.Contains(err.Error(), "has had no migrations") {
		t.Errorf("Down of a schema that is not there: %v", err)
	}
}

// An orchestrator that holds a row while migration 010 waits can still write it: neither of them loses to a deadlock.
func TestIndexesOfSagasWaitForAnOrchestrator(t *testing.T) {
	t.Parallel()
	name := at(t, pgtest.URL(), 9)
	load(t, connect(t), name, 9)
	exec := func(tx pgx.Tx, sql string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), strings.ReplaceAll(sql, "{schema}", name)); err != nil {
			t.Error(err)
		}
	}
	tx, err := connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec(tx, "SELECT FROM {schema}.saga WHERE key = 'running' FOR UPDATE")
	migrated := make(chan error, 1)
	go func() {
		migrated <- migrations.UpPatiently(t.Context(), pgtest.URL(), name, upTo(t, 10), time.Minute, time.Millisecond, 1)
	}()
	watch := connect(t)
	faulttest.Await(t, "the migration waits for the table", func() (waits bool) {
		err := watch.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_locks WHERE relation = ($1 || '.saga')::regclass AND NOT granted`, name).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	}, nil)
	exec(tx, "UPDATE {schema}.saga SET updated_at = now() WHERE key = 'running'")
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-migrated; err != nil {
		t.Errorf("Up: %v", err)
	}
}
