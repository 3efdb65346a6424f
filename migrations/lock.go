package migrations

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// ErrLocked reports that a migration did not get a lock, because an open transaction holds the table. The
// schema is at the version of the last migration that succeeded. The same call may be made again.
var ErrLocked = errors.New("a table is in use by transactions that stay open")

const (
	// LockTimeout is how long a migration waits for each lock. Meanwhile other statements on the table wait
	// behind the migration. So it also bounds the time for which a migration without its lock stops them.
	LockTimeout = time.Second

	// LockAttempts is how often a migration is tried before [ErrLocked]. Between two attempts it holds up no
	// other statement. The pauses grow to 15 seconds, so that all attempts take about two minutes.
	LockAttempts = 10
)

// A patience says how a migration waits for its locks.
type patience struct {
	timeout  time.Duration
	attempts int
	pause    backoff.Policy
}

var usual = patience{LockTimeout, LockAttempts, backoff.Policy{Base: 2 * time.Second, Cap: 15 * time.Second}}

// sqlTakeTurn lets one migrator at a time work on a schema, its pauses between attempts included. If several
// migrators tried in turns, their pauses would overlap, and other statements would never get to the table.
// The session holds the lock.
const sqlTakeTurn = `SELECT pg_try_advisory_lock(726539051, hashtext('{schema}'))`

// sqlTakeMigrator takes tern's own lock, which all migrators of the database share: tern then gets it without
// a wait. The statement does not wait either. A waiting statement has a snapshot, and a CREATE INDEX
// CONCURRENTLY of the lock's holder would wait for that snapshot in turn.
const (
	sqlTakeMigrator = `SELECT pg_try_advisory_lock(9628173550095224)`
	sqlGiveMigrator = `SELECT pg_advisory_unlock(9628173550095224)`
)

// turnPause spaces the attempts to get an advisory lock.
var turnPause = backoff.Policy{Base: 20 * time.Millisecond, Cap: 500 * time.Millisecond}

// sqlLimitWaits runs before a migration, in its transaction. It bounds the wait for a lock, unless a
// lock_timeout of the connection is set already. It also bounds how long the server lets a migrator keep its
// locks after it hangs or its machine is lost. It locks the row of the version first, while the limit
// applies: tern resets the limit before it changes that row.
const sqlLimitWaits = `SELECT set_config('lock_timeout', '%d', true) WHERE current_setting('lock_timeout') = '0';
SELECT set_config('idle_in_transaction_session_timeout', '15s', true), set_config('client_connection_check_interval', '5s', true);
SELECT version FROM %s FOR UPDATE;
`

// The error codes of a lock that the migration did not get.
const (
	lockNotAvailable = "55P03"
	deadlockDetected = "40P01"
)

// outsideTx matches the comment by which a migration tells tern to run it outside of a transaction.
var outsideTx = regexp.MustCompile(`(?m)^---- tern: disable-tx ----$`)

// migrateInTurn calls do to move schema to another version, and calls it again if a migration does not get its
// locks. Each call starts at the version that the schema has by then. The effects of a migration outside of a
// transaction stay after an error. Such a migration bounds its waits itself and is tried once.
func (s set) migrateInTurn(ctx context.Context, conn *pgx.Conn, schema string, wanted []Part, do func(*migrate.Migrator) error) error {
	if err := refusePooler(ctx, conn); err != nil {
		return fmt.Errorf("migrations: schema %s: %w", schema, err)
	}
	if err := awaitAdvisoryLock(ctx, conn, sqlschema.Bind(schema, sqlTakeTurn)); err != nil {
		return fmt.Errorf("migrations: schema %s: wait for another migration of it to end: %w", schema, err)
	}
	return s.withMigrator(ctx, conn, schema, wanted, func(m *migrate.Migrator) error {
		s.patience.limitLockWaits(m, schema+"."+s.version)
		return s.patience.retryWithoutLock(ctx, func() error { return runAsMigrator(ctx, conn, func() error { return do(m) }) }, func(name string) bool {
			return name == addingParts || slices.ContainsFunc(m.Migrations, func(step *migrate.Migration) bool { return step.Name == name && isTransactional(step) })
		})
	})
}

// runAsMigrator calls do while no other migrator works in the database.
func runAsMigrator(ctx context.Context, conn *pgx.Conn, do func() error) error {
	if err := awaitAdvisoryLock(ctx, conn, sqlTakeMigrator); err != nil {
		return fmt.Errorf("wait for another migration to end: %w", err)
	}
	err := do()
	if _, failed := conn.Exec(ctx, sqlGiveMigrator); err == nil {
		err = failed
	}
	return err
}

// awaitAdvisoryLock tries to get an advisory lock until it has it. It waits between two statements, never within one.
func awaitAdvisoryLock(ctx context.Context, conn *pgx.Conn, try string) error {
	for n := 1; ; n++ {
		var got bool
		if err := conn.QueryRow(ctx, try, pgx.QueryExecModeSimpleProtocol).Scan(&got); got || err != nil {
			return err
		}
		if err := backoff.Sleep(ctx, turnPause.Wait(n)); err != nil {
			return err
		}
	}
}

func isTransactional(step *migrate.Migration) bool {
	return !outsideTx.MatchString(step.UpSQL) && !outsideTx.MatchString(step.DownSQL)
}

// limitLockWaits bounds the waits of m's migrations.
func (p patience) limitLockWaits(m *migrate.Migrator, versionTable string) {
	limited := fmt.Sprintf(sqlLimitWaits, p.timeout.Milliseconds(), versionTable)
	for _, step := range m.Migrations {
		if !isTransactional(step) {
			continue
		}
		step.UpSQL = limited + step.UpSQL
		if step.DownSQL != "" { // an empty one says that the migration cannot be undone
			step.DownSQL = limited + step.DownSQL
		}
	}
}

// retryWithoutLock calls do until every migration gets its locks, or attempts are used up.
func (p patience) retryWithoutLock(ctx context.Context, do func() error, again func(migration string) bool) error {
	for n := 1; ; n++ {
		err := do()
		var failed migrate.MigrationPgError
		if !errors.As(err, &failed) || !lacksLock(failed.PgError) {
			return err
		}
		if !again(failed.MigrationName) {
			return fmt.Errorf("%w: %w", ErrLocked, err)
		}
		if n >= p.attempts {
			return fmt.Errorf("%w, tried %d times: %w", ErrLocked, n, err)
		}
		if ended := backoff.Sleep(ctx, p.pause.Wait(n)); ended != nil {
			return fmt.Errorf("%w, tried %d times: %w: %w", ErrLocked, n, ended, err)
		}
	}
}

func lacksLock(err *pgconn.PgError) bool {
	return err.Code == lockNotAvailable || err.Code == deadlockDetected
}
