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

// ErrLocked reports that a migration did not get a lock that it needs: a
// transaction that stays open has the table. The schema is at the version of the
// last migration that succeeded, and the same call may be made again.
var ErrLocked = errors.New("a table is in use by transactions that stay open")

const (
	// LockTimeout is how long a migration waits for each lock. Whoever comes to the
	// table meanwhile waits behind it, so this is also for how long a migration
	// stops others that it does not get past.
	LockTimeout = time.Second

	// LockAttempts is how often a migration is tried before [ErrLocked]. The pauses
	// in between, in which nobody waits for it, grow to 15 seconds, so that it takes
	// about two minutes.
	LockAttempts = 10
)

// patience is how a migration waits for its locks.
type patience struct {
	timeout  time.Duration
	attempts int
	pause    backoff.Policy
}

var usual = patience{LockTimeout, LockAttempts, backoff.Policy{Base: 2 * time.Second, Cap: 15 * time.Second}}

// sqlTakeTurn makes who migrates the same schema wait for whoever does so now,
// also while that one pauses between two attempts: several that tried in turns
// would leave no pause for others to get to the table. It is the session's.
const sqlTakeTurn = `SELECT pg_try_advisory_lock(726539051, hashtext('{schema}'))`

// sqlTakeMigrator takes tern's own lock, of all who migrate the database: tern gets it
// then without a wait. What waits inside of a statement has a snapshot, for which a CREATE
// INDEX CONCURRENTLY of the one that has the lock waits in turn.
const (
	sqlTakeMigrator = `SELECT pg_try_advisory_lock(9628173550095224)`
	sqlGiveMigrator = `SELECT pg_advisory_unlock(9628173550095224)`
)

// turnPause is from one look whether it is one's turn to the next.
var turnPause = backoff.Policy{Base: 20 * time.Millisecond, Cap: 500 * time.Millisecond}

// sqlLimitWaits stands in front of a migration, in its transaction. It bounds the wait for
// a lock, unless the connection has a lock_timeout of its own, and the time that the
// server leaves a migrator that hangs, or whose machine is gone, with the locks that it has. The row of the
// version is locked first, while the limit counts: tern ends it before it changes that.
const sqlLimitWaits = `SELECT set_config('lock_timeout', '%d', true) WHERE current_setting('lock_timeout') = '0';
SELECT set_config('idle_in_transaction_session_timeout', '15s', true), set_config('client_connection_check_interval', '5s', true);
SELECT version FROM %s FOR UPDATE;
`

// The error codes of a lock that was not got.
const (
	lockNotAvailable = "55P03"
	deadlockDetected = "40P01"
)

// outsideTx is how a migration says to tern that it is none in a transaction.
var outsideTx = regexp.MustCompile(`(?m)^---- tern: disable-tx ----$`)

// migrating has do move schema to another version, again if a migration does not get its
// locks. do begins anew each time, from the version that is there then. What a migration
// outside of a transaction has done stays, so that it waits as it says itself and is tried once.
func (s set) migrating(ctx context.Context, conn *pgx.Conn, schema string, wanted []Part, do func(*migrate.Migrator) error) error {
	if err := refusePooler(ctx, conn); err != nil {
		return fmt.Errorf("migrations: schema %s: %w", schema, err)
	}
	if err := await(ctx, conn, sqlschema.Bind(schema, sqlTakeTurn)); err != nil {
		return fmt.Errorf("migrations: schema %s: wait for who migrates it: %w", schema, err)
	}
	return s.locked(ctx, conn, schema, wanted, func(m *migrate.Migrator) error {
		s.patience.limit(m, schema+"."+s.version)
		return s.patience.try(ctx, func() error { return alone(ctx, conn, func() error { return do(m) }) }, func(name string) bool {
			return name == addingParts || slices.ContainsFunc(m.Migrations, func(step *migrate.Migration) bool { return step.Name == name && repeatable(step) })
		})
	})
}

// alone has do run while nobody else migrates anything in the database.
func alone(ctx context.Context, conn *pgx.Conn, do func() error) error {
	if err := await(ctx, conn, sqlTakeMigrator); err != nil {
		return fmt.Errorf("wait for who migrates: %w", err)
	}
	err := do()
	if _, failed := conn.Exec(ctx, sqlGiveMigrator); err == nil {
		err = failed
	}
	return err
}

// await tries to get an advisory lock until it has it. It waits between two statements,
// not in one.
func await(ctx context.Context, conn *pgx.Conn, try string) error {
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

func repeatable(step *migrate.Migration) bool {
	return !outsideTx.MatchString(step.UpSQL) && !outsideTx.MatchString(step.DownSQL)
}

// limit bounds the waits of m's migrations.
func (p patience) limit(m *migrate.Migrator, versionTable string) {
	limited := fmt.Sprintf(sqlLimitWaits, p.timeout.Milliseconds(), versionTable)
	for _, step := range m.Migrations {
		if !repeatable(step) {
			continue
		}
		step.UpSQL = limited + step.UpSQL
		if step.DownSQL != "" { // or it would no longer be one that cannot be undone
			step.DownSQL = limited + step.DownSQL
		}
	}
}

// try calls do until no migration lacks a lock, or attempts are used up.
func (p patience) try(ctx context.Context, do func() error, again func(migration string) bool) error {
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
