package migrations

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// traced are the tables that operator.Locator reads.
var traced = []string{
	"inbox", "inbox_horizon", "parked",
	"outbox_0", "outbox_1", "outbox_2", "outbox_other", "outbox_held", "outbox_relay", "outbox_cursor_0", "outbox_cursor_1",
}

// orchestrated are the tables of package saga.
var orchestrated = []string{"saga", "saga_definition", "saga_journal"}

// A Schema is a schema that holds tables of this module.
type Schema struct {
	Name string

	// Absent are the tables that it lacks, because its migrations are older than this binary.
	Absent []string

	// Denied are the tables that the role may not read. Without USAGE on the schema these are all tables.
	Denied []string

	// Sagas reports whether it has the tables of package saga. SagasDenied are the tables of those that the
	// role may not read.
	Sagas       bool
	SagasDenied []string
}

// Readable reports whether the role may read all tables that locate a saga. For the instances of package saga
// see Sagas and SagasDenied.
func (s *Schema) Readable() bool { return len(s.Absent) == 0 && len(s.Denied) == 0 }

// sqlListSchemas lists the schemas with a version table $2 and an inbox. For each it lists which of the
// tables $1 are missing, and which the role may not read. It reads catalogs only, which every role may. A
// table that is dropped at this moment is in neither list, because the server answers null.
const sqlListSchemas = `
SELECT s.name,
	coalesce(array_agg(t.name ORDER BY t.ordinal) FILTER (WHERE c.oid IS NULL), '{}'),
	coalesce(array_agg(t.name ORDER BY t.ordinal) FILTER (WHERE c.oid IS NOT NULL AND NOT (s.usable AND has_table_privilege(c.oid, 'SELECT'))), '{}')
FROM (
	SELECT oid, nspname::text AS name, has_schema_privilege(oid, 'USAGE') AS usable FROM pg_namespace) s
CROSS JOIN unnest($1::text[]) WITH ORDINALITY t (name, ordinal)
LEFT JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = t.name AND c.relkind = 'r'
WHERE EXISTS (SELECT FROM pg_class v WHERE v.relnamespace = s.oid AND v.relname = $2 AND v.relkind = 'r')
	AND EXISTS (SELECT FROM pg_class i WHERE i.relnamespace = s.oid AND i.relname = 'inbox' AND i.relkind = 'r')
GROUP BY s.name ORDER BY s.name COLLATE "C"`

// Schemas lists the schemas with an inbox of this module in the database of db, ordered by name. It includes
// schemas in which the role may not read all tables, and schemas with older migrations. It takes no lock on
// tables, and needs no grant.
func Schemas(ctx context.Context, db *pgxpool.Pool) ([]Schema, error) {
	rows, _ := db.Query(ctx, sqlListSchemas, slices.Concat(traced, orchestrated), versionTable)
	all, err := pgx.CollectRows(rows, scanSchema)
	if err != nil {
		return nil, fmt.Errorf("migrations: list schemas: %w", err)
	}
	ours := all[:0]
	for _, s := range all {
		if sqlschema.Check(s.Name) == nil { // Up makes no others
			ours = append(ours, s)
		}
	}
	return ours, nil
}

func scanSchema(r pgx.CollectableRow) (s Schema, err error) {
	if err := r.Scan(&s.Name, &s.Absent, &s.Denied); err != nil {
		return s, err
	}
	ofSaga := func(table string) bool { return slices.Contains(orchestrated, table) }
	s.Sagas = !slices.ContainsFunc(s.Absent, ofSaga)
	for _, table := range s.Denied {
		if ofSaga(table) {
			s.SagasDenied = append(s.SagasDenied, table)
		}
	}
	s.Absent, s.Denied = slices.DeleteFunc(s.Absent, ofSaga), slices.DeleteFunc(s.Denied, ofSaga)
	return s, nil
}
