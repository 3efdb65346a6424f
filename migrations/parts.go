package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A Part is the tables of one package. A schema has the parts that its service uses, all at the same version.
type Part string

// The parts. [Up] adds the parts that a [Part] needs.
const (
	Idempotency Part = "idempotency" // of idemkey/idempg
	Outbox      Part = "outbox"      // of outbox
	Inbox       Part = "inbox"       // of consumer; handlers that send messages need Outbox too
	Saga        Part = "saga"        // of saga; needs Outbox and Inbox
)

// journal is the table that operators of messages write. Outbox and Inbox need it.
const journal Part = "journal"

var (
	parts      = []Part{Idempotency, Outbox, Inbox, Saga}
	everything = append(slices.Clone(parts), journal)
	needs      = map[Part][]Part{Outbox: {journal}, Inbox: {journal}, Saga: {Outbox, Inbox}}
)

// resolveParts returns wanted and the parts that those need, in the order of everything. No part means all.
func resolveParts(wanted []Part) ([]Part, error) {
	if len(wanted) == 0 {
		return everything, nil
	}
	for _, p := range wanted {
		if !slices.Contains(parts, p) {
			return nil, fmt.Errorf("migrations: there is no part %q: the parts are %s", p, joinParts(parts, ", "))
		}
	}
	all := slices.Clone(wanted)
	for i := 0; i < len(all); i++ { // all grows: a needed part may need others
		all = append(all, needs[all[i]]...)
	}
	return uniteParts(all, nil), nil
}

// uniteParts returns a and b without duplicates, known ones in the order of everything.
func uniteParts(a, b []Part) []Part {
	both := slices.Concat(a, b)
	slices.SortFunc(both, func(p, q Part) int {
		return slices.Index(everything, p) - slices.Index(everything, q)
	})
	return slices.Compact(both)
}

func joinParts(all []Part, separator string) string {
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = string(p)
	}
	return strings.Join(names, separator)
}

// templateData returns, for the SQL of migrations and roles, which parts there are: {{if .outbox}}.
func templateData(all []Part) map[string]any {
	data := map[string]any{}
	for _, p := range all {
		data[string(p)] = true
	}
	return data
}

// A state is the version and the parts of a schema. The column parts exists only in a schema with some parts
// but not all: without it the schema has everything.
type state struct {
	version int32
	mark    string // comment of the version table
	record  string // of the parts, as recordParts writes it
	names   string // JSON of the names of a service's own migrations by number; "": none is recorded
}

// recordParts returns what the version table says of a schema with all these parts.
func recordParts(all []Part) string {
	if !slices.ContainsFunc(everything, func(p Part) bool { return !slices.Contains(all, p) }) {
		return ""
	}
	return joinParts(all, " ")
}

// existingParts returns the parts whose tables the schema has. At version 0 there are none, even if some are
// recorded.
func (s state) existingParts() (all []Part) {
	switch {
	case s.version == 0:
		return nil
	case s.record == "":
		return everything
	}
	for name := range strings.FieldsSeq(s.record) {
		all = append(all, Part(name))
	}
	return all
}

// missingParts returns the parts of wanted that the schema does not have.
func (s state) missingParts(wanted []Part) []Part {
	there := s.existingParts()
	return slices.DeleteFunc(slices.Clone(wanted), func(p Part) bool { return slices.Contains(there, p) })
}

// addParts creates the tables of the parts that the schema lacks, at the version of the schema, and records
// the parts, in one transaction. For a schema without a version it only records them: the migrations create
// the tables.
func (s set) addParts(ctx context.Context, conn *pgx.Conn, schema string, wanted []Part) error {
	at, err := s.readState(ctx, conn, schema)
	if err != nil {
		return err
	}
	missing, record := at.missingParts(wanted), recordParts(uniteParts(at.existingParts(), wanted))
	if len(missing) == 0 || at.version == 0 && at.record == record {
		return nil
	}
	m, err := s.loadMigrator(ctx, nil, schema, missing)
	if err != nil {
		return err
	}
	if int(at.version) > len(m.Migrations) {
		return fmt.Errorf("version %d is newer than this binary, which knows %d: add %s with the newer binary",
			at.version, len(m.Migrations), joinParts(missing, ", "))
	}
	var sql strings.Builder
	fmt.Fprintf(&sql, sqlLimitWaits, s.patience.timeout.Milliseconds(), schema+"."+s.version)
	fmt.Fprintf(&sql, sqlRecordParts, schema+"."+s.version, record)
	for _, step := range m.Migrations[:at.version] {
		sql.WriteString(step.UpSQL + "\n")
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql.String(), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) { // the error that retryWithoutLock recognizes
		return migrate.MigrationPgError{MigrationName: addingParts, PgError: refused}
	}
	return err
}

// sqlRecordParts records which parts a schema has.
const sqlRecordParts = `ALTER TABLE %[1]s ADD COLUMN IF NOT EXISTS parts text;
UPDATE %[1]s SET parts = nullif('%[2]s', '');
`

// addingParts is the name of addParts in errors.
const addingParts = "add parts"

// Parts returns the parts whose tables schema has. Before the first migration there are none.
func Parts(ctx context.Context, databaseURL, schema string) (there []Part, err error) {
	err = sagamill.withConnection(ctx, databaseURL, schema, func(conn *pgx.Conn, schema string) error {
		at, err := sagamill.readState(ctx, conn, schema)
		if isNeverMigrated(err) {
			return nil
		}
		for _, p := range at.existingParts() {
			if p != journal {
				there = append(there, p)
			}
		}
		return err
	})
	return there, err
}

// readState reads the state of schema without a lock. It returns an error if the schema has no state yet, and an
// errOtherFile if another service has applied its migrations.
func (s set) readState(ctx context.Context, conn *pgx.Conn, schema string) (at state, err error) {
	err = conn.QueryRow(ctx, sqlschema.Bind(schema, sqlReadState+s.version+" v"), pgx.QueryExecModeSimpleProtocol).Scan(&at.version, &at.record, &at.mark, &at.names)
	if err == nil && s.version == versionTable && at.version > 0 && at.mark != releaseMark {
		return at, fmt.Errorf("%w: it is at version %d of the former numbers. Nothing was changed, and nothing is lost: docs/upgrading.md says how to keep the tables",
			errPreRelease, at.version)
	}
	if err != nil || s.version == versionTable {
		return at, err
	}
	files, err := migrate.FindMigrations(s.files)
	if err == nil {
		err = at.checkNames(files)
	}
	return at, err
}

const sqlReadState = `SELECT version, coalesce(to_jsonb(v) ->> 'parts', ''), coalesce(obj_description(v.tableoid, 'pg_class'), ''),
	coalesce(to_jsonb(v) ->> 'names', '') FROM {schema}.`

// releaseMark is the comment that the first migration puts on the version table.
const releaseMark = "sagamill migrations"

// errPreRelease reports a schema without [releaseMark]. Its version counts migrations that this binary does not have.
var errPreRelease = errors.New("a pre-release of sagamill made this schema, with other migration numbers")
