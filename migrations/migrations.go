// Package migrations holds sagamill's tables as SQL, templated with the name
// of the Postgres schema they live in, and applies them with jackc/tern.
//
// Any number of processes may call [Up] at once, at every start: they take turns under a database-wide
// advisory lock. Each migration runs in a transaction with its version number, so a process that is killed
// half-way leaves the schema at a whole version. A schema that is ahead of the binary is left alone, which
// lets the previous binary run on during a rolling deploy.
//
// A migration that needs a lock does not queue for it for long, because other statements would queue behind
// it. It waits for [LockTimeout], is rolled back, and is tried again after a pause, [LockAttempts] times. If
// the URL, the role or the database sets a lock_timeout, that applies instead.
//
// A service that uses some packages only may name their parts: a schema with [Idempotency] alone has one
// table besides the version. Within a migration, {{if .outbox}} and so on choose the statements of a part.
// The part journal belongs to the operators of messages.
//
// To apply the SQL by other means, print it with [Print], or with the command `sagamill migrate print`.
// [Roles] prints the database roles for processes that are to have no more rights than they need.
package migrations

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/tern/v2/migrate"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

//go:embed [0-9]*.sql
var files embed.FS

// DefaultSchema is the schema of the tables if the caller gives "".
const DefaultSchema = sqlschema.Default

// versionTable is the name of tern's table: one row, the number of the last migration applied.
const versionTable = "schema_version"

// A transaction-level advisory lock guards sqlCreateSchema, because CREATE SCHEMA does not wait for a
// concurrent one of the same name: the loser fails with a unique violation. IF NOT EXISTS needs the right to
// create schemas even if there is nothing to create.
const sqlCreateSchema = `
BEGIN;
SELECT pg_advisory_xact_lock(7265390517843162);
DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}') THEN
		CREATE SCHEMA {schema};
	END IF;
END $$;
COMMIT`

// sagamill is the set of the tables of this module.
var sagamill = newSet(files, versionTable)

// A set is a series of migrations with the table that says which were applied.
type set struct {
	files    fs.FS
	version  string
	patience patience
}

func newSet(files fs.FS, version string) set { return set{files, version, usual} }

// Up creates schema if it is missing, and applies all migrations that the schema has not had. Without parts
// it does so for all parts, else for parts and the parts that they need. Parts that the schema has already
// stay, and are migrated with the others. A part that is new to the schema gets its tables in one
// transaction, at the version of the schema.
//
// Up needs a connection that leads past any pooler, because the migrator's lock belongs to the session;
// otherwise it returns [ErrPooled]. After an error the schema is at the version of the last migration that
// succeeded. The error is an [ErrLocked] if open transactions kept a migration from a table.
func Up(ctx context.Context, databaseURL, schema string, parts ...Part) error {
	wanted, err := resolveParts(parts)
	if err != nil {
		return err
	}
	return sagamill.migrateUp(ctx, databaseURL, schema, wanted)
}

// UpFrom does what [Up] does with a service's own migrations: those in the root
// of own, named 001_name.sql and so on, which may use {{.schema}}. Their
// version is kept in a table of that name in schema, next to sagamill's, with the name of each file. UpFrom
// changes nothing and returns an error if a migration was applied from a file with another name: then another
// service of the same name has used the schema.
func UpFrom(ctx context.Context, databaseURL, schema, table string, own fs.FS) error {
	if err := checkOwnTable(table); err != nil {
		return err
	}
	return newSet(own, table).migrateUp(ctx, databaseURL, schema, nil)
}

// checkOwnTable returns an error if table cannot keep the version of a service's own migrations.
func checkOwnTable(table string) error {
	if err := sqlschema.Check(table); err != nil || table == versionTable {
		return fmt.Errorf("migrations: %q cannot be the version table: give a plain identifier other than sagamill's own table", table)
	}
	return nil
}

// migrateUp applies the migrations of s. Migrations other than sagamill's have no parts.
func (s set) migrateUp(ctx context.Context, databaseURL, schema string, wanted []Part) error {
	return s.withConnection(ctx, databaseURL, schema, func(conn *pgx.Conn, schema string) error {
		known, err := migrate.FindMigrations(s.files)
		if err != nil {
			return fmt.Errorf("migrations: load for schema %s: %w", schema, err)
		}
		switch at, err := s.readState(ctx, conn, schema); {
		case errors.Is(err, errPreRelease), errors.Is(err, errOtherFile):
			return fmt.Errorf("migrations: schema %s: %w", schema, err)
		case err == nil && int(at.version) >= len(known) && len(at.missingParts(wanted)) == 0:
			return nil // the usual case, at every start after the first: no locks
		}
		return s.migrateInTurn(ctx, conn, schema, wanted, func(m *migrate.Migrator) error {
			if err := s.addParts(ctx, conn, schema, wanted); err != nil {
				return err
			}
			version, err := m.GetCurrentVersion(ctx)
			if err != nil || int(version) >= len(m.Migrations) {
				return err
			}
			return m.Migrate(ctx)
		})
	})
}

// Down takes schema back to version; 0 removes every table with its rows. The schema itself stays. Down waits
// for locks as [Up] does. After an error the schema is at the version after the last step down that
// succeeded.
func Down(ctx context.Context, databaseURL, schema string, version int32) error {
	return sagamill.migrateDown(ctx, databaseURL, schema, version)
}

func (s set) migrateDown(ctx context.Context, databaseURL, schema string, version int32) error {
	return s.withConnection(ctx, databaseURL, schema, func(conn *pgx.Conn, schema string) error {
		switch _, err := s.readState(ctx, conn, schema); {
		case isNeverMigrated(err):
			return fmt.Errorf("migrations: schema %s has had no migrations: is it the right schema?", schema)
		case errors.Is(err, errPreRelease), errors.Is(err, errOtherFile):
			return fmt.Errorf("migrations: schema %s: %w", schema, err)
		}
		return s.migrateInTurn(ctx, conn, schema, nil, func(m *migrate.Migrator) error {
			current, err := m.GetCurrentVersion(ctx)
			if err != nil {
				return err
			}
			if version < 0 || version > current {
				return fmt.Errorf("cannot go down to version %d from version %d", version, current)
			}
			return m.MigrateTo(ctx, version)
		})
	})
}

// Newest returns the number of the newest migration of this binary. It does no I/O. [Version] returns how
// many migrations a schema has had.
func Newest() int32 {
	known, err := migrate.FindMigrations(sagamill.files)
	if err != nil {
		panic(fmt.Sprintf("migrations: the embedded files: %v", err)) // the build embeds the files: its tests would have failed
	}
	return int32(len(known))
}

// Version returns the number of the last migration applied to schema, 0 if none was, and the number of
// [Newest].
func Version(ctx context.Context, databaseURL, schema string) (applied, known int32, err error) {
	applied, err = sagamill.readVersion(ctx, databaseURL, schema)
	return applied, Newest(), err
}

// VersionFrom is [Version] for a service's own migrations, with the table and the files that [UpFrom] gets.
func VersionFrom(ctx context.Context, databaseURL, schema, table string, own fs.FS) (applied, known int32, err error) {
	if err := checkOwnTable(table); err != nil {
		return 0, 0, err
	}
	files, err := migrate.FindMigrations(own)
	if err != nil {
		return 0, 0, fmt.Errorf("migrations: load for schema %s: %w", schema, err)
	}
	applied, err = newSet(own, table).readVersion(ctx, databaseURL, schema)
	return applied, int32(len(files)), err
}

// readVersion returns the number of the last migration of s that was applied, 0 if none was.
func (s set) readVersion(ctx context.Context, databaseURL, schema string) (applied int32, err error) {
	err = s.withConnection(ctx, databaseURL, schema, func(conn *pgx.Conn, schema string) error {
		at, err := s.readState(ctx, conn, schema)
		if isNeverMigrated(err) {
			return nil
		}
		applied = at.version
		if errors.Is(err, errOtherFile) {
			err = fmt.Errorf("migrations: schema %s: %w", schema, err)
		}
		return err
	})
	return applied, err
}

// isNeverMigrated reports that the schema has no version, or no version table.
func isNeverMigrated(err error) bool {
	var missing *pgconn.PgError
	return errors.Is(err, pgx.ErrNoRows) || errors.As(err, &missing) && missing.Code == "42P01"
}

// Print writes the SQL of all migrations for schema to w, in the form that psql runs, for parts and the parts
// that they need, or for all. The SQL also writes the version table, so that a later [Up] knows what was
// applied. It is for a schema that has had no migrations.
func Print(w io.Writer, schema string, parts ...Part) error {
	schema = cmp.Or(schema, DefaultSchema)
	if err := sqlschema.Check(schema); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	wanted, err := resolveParts(parts)
	if err != nil {
		return err
	}
	m, err := sagamill.loadMigrator(context.Background(), nil, schema, wanted)
	if err != nil {
		return fmt.Errorf("migrations: load: %w", err)
	}
	var sql strings.Builder
	fmt.Fprintf(&sql, "BEGIN;\nCREATE SCHEMA IF NOT EXISTS %s;\n", schema)
	fmt.Fprintf(&sql, "CREATE TABLE %s.%s (version int4 NOT NULL);\n", schema, versionTable)
	for _, step := range m.Migrations {
		fmt.Fprintf(&sql, "\n-- %s\n%s\n", step.Name, step.UpSQL)
	}
	fmt.Fprintf(&sql, "\nINSERT INTO %s.%s (version) VALUES (%d);\n", schema, versionTable, len(m.Migrations))
	if record := recordParts(wanted); record != "" {
		fmt.Fprintf(&sql, sqlRecordParts, schema+"."+versionTable, record)
	}
	sql.WriteString("COMMIT;\n")
	_, err = io.WriteString(w, sql.String())
	return err
}

// withConnection calls do with a new connection. It closes the connection afterwards, also after an error, which
// frees tern's lock.
func (s set) withConnection(ctx context.Context, databaseURL, schema string, do func(conn *pgx.Conn, schema string) error) error {
	schema = cmp.Or(schema, DefaultSchema)
	if err := sqlschema.Check(schema); err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	if databaseURL == "" { // pgx would take its defaults and the environment's database
		return errors.New("migrations: there is no database URL")
	}
	config, err := parseURL(databaseURL)
	if err != nil {
		return fmt.Errorf("migrations: connect: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("migrations: connect: %w", redactParseError(err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if s.version == versionTable {
		if _, err := conn.Exec(ctx, "SET row_security = off"); err != nil { // a version that is hidden is not 0
			return fmt.Errorf("migrations: %w", err)
		}
	}
	return do(conn, schema)
}

// connectTimeout limits how long a server may take to accept a connection, unless the URL has connect_timeout. Without
// it a server whose packets are lost would say nothing for two minutes.
const connectTimeout = 10 * time.Second

// parseURL accepts the pool settings that a URL may have.
func parseURL(databaseURL string) (*pgx.ConnConfig, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, redactParseError(err)
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	return config.ConnConfig, nil
}

// withMigrator calls do with a migrator for the parts that the schema has and those that are wanted. It first
// creates schema and its version table if they are missing, which takes locks of the whole database.
func (s set) withMigrator(ctx context.Context, conn *pgx.Conn, schema string, wanted []Part, do func(*migrate.Migrator) error) error {
	if _, err := conn.PgConn().Exec(ctx, sqlschema.Bind(schema, sqlCreateSchema)).ReadAll(); err != nil {
		return fmt.Errorf("migrations: create schema %s: %w", schema, err)
	}
	var m *migrate.Migrator
	if err := runAsMigrator(ctx, conn, func() (err error) { m, err = s.loadMigrator(ctx, conn, schema, wanted); return err }); err != nil {
		return fmt.Errorf("migrations: load for schema %s: %w", schema, err)
	}
	if err := do(m); err != nil {
		return fmt.Errorf("migrations: schema %s: %w", schema, err)
	}
	return nil
}

// redactParseError keeps pgx's parse error out of logs: it quotes the URL, and masks the password only where it could
// parse it.
func redactParseError(err error) error {
	if _, ok := err.(*pgconn.ParseConfigError); ok {
		return fmt.Errorf("the database URL cannot be parsed")
	}
	return err
}

// loadMigrator returns the migrations of wanted. With a connection, it adds those of the parts that schema has, and
// creates the version table if it is missing.
func (s set) loadMigrator(ctx context.Context, conn *pgx.Conn, schema string, wanted []Part) (*migrate.Migrator, error) {
	m, err := migrate.NewMigrator(ctx, conn, schema+"."+s.version)
	if err != nil {
		return nil, err
	}
	var at state
	if conn != nil {
		if at, err = s.readState(ctx, conn, schema); err != nil {
			return nil, err
		}
		wanted = uniteParts(at.existingParts(), wanted)
	}
	m.Data = templateData(wanted)
	m.Data["schema"] = schema
	if err := m.LoadMigrations(s.files); err != nil || s.version == versionTable {
		return m, err
	}
	return m, s.recordNames(ctx, conn, m, schema, at)
}
