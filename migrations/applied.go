package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// An Applied says which migrations a schema has had, and whose tables it has.
type Applied struct {
	Schema  string
	Version int32 // the number of the last migration; 0 if Denied
	Parts   []Part
	Denied  bool // the role may not read the version
}

// markers are the tables by which the parts of a schema are recognized.
var markers = map[Part]string{Idempotency: "idempotency_key", Outbox: "outbox_relay", Inbox: "inbox", Saga: "saga"}

// sqlListApplied lists the schemas whose version table $1 has the comment $2. For each it says whether the role may
// read that table, and which of the tables $3 exist. It reads catalogs only, which every role may.
const sqlListApplied = `
SELECT n.nspname::text, coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(v.oid, 'SELECT'), false),
	ARRAY(SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND c.relname = ANY ($3::text[]))
FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
WHERE v.relname = $1 AND v.relkind = 'r' AND obj_description(v.oid, 'pg_class') = $2
ORDER BY n.nspname COLLATE "C"`

// ListApplied lists the schemas in the database of db that have tables of this module, ordered by name. It includes
// schemas without an inbox, which [Schemas] leaves out. It needs no grant; without SELECT on schema_version the version
// of a schema stays unknown. If ctx has a deadline, the server keeps it too.
func ListApplied(ctx context.Context, db *pgxpool.Pool) ([]Applied, error) {
	var tables []string
	for _, p := range parts {
		tables = append(tables, markers[p])
	}
	var found []Applied
	err := pgx.BeginTxFunc(ctx, db, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, sqlListApplied, versionTable, releaseMark, tables)
		found, err = pgx.CollectRows(rows, scanApplied)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrations: list schemas: %w", err)
	}
	all := found[:0]
	for _, a := range found {
		if sqlschema.Check(a.Schema) != nil || len(a.Parts) == 0 { // Up makes no others; Down to 0 removes all tables
			continue
		}
		switch err := a.readVersion(ctx, db); {
		case isNeverMigrated(err): // the schema is dropped at this moment
		case err != nil:
			return nil, fmt.Errorf("migrations: read the version of schema %s: %w", a.Schema, err)
		default:
			all = append(all, a)
		}
	}
	return all, nil
}

func scanApplied(r pgx.CollectableRow) (a Applied, err error) {
	var readable bool
	var tables []string
	if err := r.Scan(&a.Schema, &readable, &tables); err != nil {
		return a, err
	}
	a.Denied = !readable
	for _, p := range parts {
		for _, table := range tables {
			if markers[p] == table {
				a.Parts = append(a.Parts, p)
			}
		}
	}
	return a, nil
}

// readVersion reads the version, unless it is denied. A migration may hold the table for long.
func (a *Applied) readVersion(ctx context.Context, db *pgxpool.Pool) error {
	if a.Denied {
		return nil
	}
	err := pgx.BeginTxFunc(ctx, db, pg.BeginLimitedRead(ctx, ""), func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sqlschema.Bind(a.Schema, "SELECT version FROM {schema}."+versionTable)).Scan(&a.Version)
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42501" { // the grant is revoked at this moment
		a.Denied, err = true, nil
	}
	return err
}
