package migrations

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"

	"github.com/sagamill/sagamill/internal/backoff"
)

// Files are the migrations.
var Files fs.FS = files

// ParseURL returns how Up connects.
var ParseURL = parseURL

// UpWith does what Up does, with other migrations than there are.
func UpWith(ctx context.Context, databaseURL, schema string, files fs.FS) error {
	return newSet(files, versionTable).migrateUp(ctx, databaseURL, schema, everything)
}

// UpPatiently does what UpWith does and waits for locks as the test says.
func UpPatiently(ctx context.Context, databaseURL, schema string, files fs.FS, timeout, pause time.Duration, attempts int) error {
	s := newSet(files, versionTable)
	s.patience = patience{timeout, attempts, backoff.Policy{Base: pause, Cap: pause}}
	return s.migrateUp(ctx, databaseURL, schema, everything)
}

// DownWith does what Down does, with other migrations than there are.
func DownWith(ctx context.Context, databaseURL, schema string, files fs.FS, version int32) error {
	return newSet(files, versionTable).migrateDown(ctx, databaseURL, schema, version)
}

// UpTo applies the migrations up to version.
func UpTo(ctx context.Context, databaseURL, schema string, version int32) error {
	return sagamill.withConnection(ctx, databaseURL, schema, func(conn *pgx.Conn, schema string) error {
		return sagamill.withMigrator(ctx, conn, schema, everything, func(m *migrate.Migrator) error { return m.MigrateTo(ctx, version) })
	})
}

// UpParts does what UpWith does, for some parts.
func UpParts(ctx context.Context, databaseURL, schema string, files fs.FS, parts ...Part) error {
	wanted, err := resolveParts(parts)
	if err != nil {
		return err
	}
	return newSet(files, versionTable).migrateUp(ctx, databaseURL, schema, wanted)
}
