package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// sequenceMargin is how far above the largest id a sequence is set. Transactions that take numbers while it is raised
// take far fewer, so that no number comes a second time.
const sequenceMargin = 1_000_000

// An IDSequence is the sequence of a table's ids, and the tables that have ids from it. It is behind its rows after a
// logical cut-over or a data-only restore: both copy rows, and not the value of a sequence
// (https://www.postgresql.org/docs/current/logical-replication-restrictions.html).
type IDSequence struct {
	Name   string // without the schema
	Tables []string
}

// IDSequences are all sequences of ids in a schema of sagamill.
var IDSequences = []IDSequence{
	{"outbox_id_seq", []string{"outbox_0", "outbox_1", "outbox_2", "outbox_other", "outbox_held"}},
	{"parked_id_seq", []string{"parked"}},
	{"saga_journal_id_seq", []string{"saga_journal"}},
	{"operator_journal_id_seq", []string{"operator_journal"}},
}

// OutboxSequence is the first of IDSequences.
var OutboxSequence = &IDSequences[0]

// A SequenceError reports a sequence that is behind its rows, and that could not be raised. Its next numbers may be ids
// of existing rows.
type SequenceError struct {
	Sequence      string
	Last, Largest int64
	Err           error // why the sequence could not be raised
}

// Error says what to do.
func (e *SequenceError) Error() string {
	return fmt.Sprintf("sequence %s stands at %d, and its rows have ids up to %d: run SELECT setval('%s', %d) as its owner, or sagamill migrate roles again: %v",
		e.Sequence, e.Last, e.Largest, e.Sequence, e.Largest+sequenceMargin, e.Err)
}

// Unwrap returns Err.
func (e *SequenceError) Unwrap() error { return e.Err }

// sqlRead returns a statement that reads the last value of the sequence, and the largest id of its rows. It reads the
// sequence as a table, which fails without the right to do so. pg_sequence_last_value would return null, since
// PostgreSQL 17.
func (s *IDSequence) sqlRead() string {
	largest := make([]string, len(s.Tables))
	for i, table := range s.Tables {
		largest[i] = "(SELECT max(id) FROM {schema}." + table + ")"
	}
	return "SELECT CASE WHEN is_called THEN last_value ELSE 0 END, coalesce(greatest(" + strings.Join(largest, ", ") + "), 0) FROM {schema}." + s.Name
}

// Read returns the last value of the sequence in schema, and the largest id of its rows.
func (s *IDSequence) Read(ctx context.Context, db Querier, schema string) (last, largest int64, err error) {
	err = db.QueryRow(ctx, sqlschema.Bind(schema, s.sqlRead())).Scan(&last, &largest)
	if err != nil {
		return 0, 0, fmt.Errorf("compare sequence %s.%s with its rows: %w", schema, s.Name, err)
	}
	return last, largest, nil
}

// Raise sets a sequence that is behind its rows to the largest id plus sequenceMargin, and reports whether it did. Its
// error is a [*SequenceError] if tx may not do so. A ROLLBACK does not undo it: a sequence is no part of a transaction.
func (s *IDSequence) Raise(ctx context.Context, tx pgx.Tx, schema string) (raised bool, err error) {
	last, largest, err := s.Read(ctx, tx, schema)
	if err != nil || last >= largest {
		return false, err
	}
	name := schema + "." + s.Name
	if _, err := tx.Exec(ctx, sqlLockRaising, name); err != nil { // another process may raise it now, and must not set it back
		return false, fmt.Errorf("raise sequence %s: %w", name, err)
	}
	last, largest, err = s.Read(ctx, tx, schema)
	if err != nil || last >= largest {
		return false, err
	}
	if _, err := tx.Exec(ctx, "SELECT setval($1::text::regclass, $2)", name, largest+sequenceMargin); err != nil {
		return false, &SequenceError{Sequence: name, Last: last, Largest: largest, Err: err}
	}
	return true, nil
}

const sqlLockRaising = `SELECT pg_advisory_xact_lock(hashtextextended('sagamill sequence ' || $1, 0))`

const (
	uniqueViolation = "23505"
	undefinedTable  = "42P01"
	undefinedSchema = "3F000"
	noPrivilege     = "42501"
)

// takenFrom returns the sequence whose number was already taken, if err, the error of an INSERT, says so. Else it
// returns nil.
func takenFrom(err error) (s *IDSequence, schema string) {
	var said *pgconn.PgError
	if !errors.As(err, &said) || said.Code != uniqueViolation || said.ConstraintName != said.TableName+"_pkey" {
		return nil, ""
	}
	for i := range IDSequences {
		for _, table := range IDSequences[i].Tables {
			if table == said.TableName {
				return &IDSequences[i], said.SchemaName
			}
		}
	}
	return nil, ""
}

// RaiseIfTaken returns err, the error of a transaction on conn that has ended. If err is that of an INSERT whose id was
// taken, RaiseIfTaken raises the sequence, so that the transaction can be repeated, and the returned error says so.
func RaiseIfTaken(ctx context.Context, conn *pgx.Conn, err error) error {
	sequence, schema := takenFrom(err)
	if sequence == nil || conn.IsClosed() || conn.PgConn().TxStatus() != 'I' {
		return err
	}
	raised := false
	failed := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: beginOwn(pgx.TxOptions{})}, func(tx pgx.Tx) (err error) {
		raised, err = sequence.Raise(ctx, tx, schema)
		return err
	})
	var said *pgconn.PgError
	switch {
	case errors.As(failed, &said) && (said.Code == undefinedTable || said.Code == undefinedSchema):
		return err // a handler's own table, of another schema
	case errors.As(failed, &said) && said.Code == noPrivilege:
		return fmt.Errorf("%w (if sequence %[2]s.%[3]s is behind its rows, as after a data-only restore, run as its owner: SELECT setval('%[2]s.%[3]s', (SELECT max(id) FROM %[2]s.%[4]s) + %[5]d): %[6]w)",
			err, schema, sequence.Name, sequence.Tables[0], sequenceMargin, failed)
	case failed != nil:
		return errors.Join(err, failed)
	case raised:
		return fmt.Errorf("%w (sequence %s.%s was behind its rows, as after a data-only restore, and has been raised)", err, schema, sequence.Name)
	}
	return err
}
