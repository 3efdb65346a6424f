package consumerstorm

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// SQLCreateTables makes the tables of a [Ledger] in {schema}. They have no unique keys, so that a repeated
// effect shows as two rows.
const SQLCreateTables = `
CREATE TABLE {schema}.storm_effect (id bigserial PRIMARY KEY, key text NOT NULL, kind text NOT NULL, message_id text NOT NULL, payload bytea NOT NULL);
CREATE TABLE {schema}.storm_entry (id bigserial PRIMARY KEY, key text NOT NULL, kind text NOT NULL, message_id text NOT NULL)`

// sqlInsertEffect and sqlInsertEntry take no lock that another session waits for.
const (
	sqlInsertEffect = `INSERT INTO {schema}.storm_effect (key, kind, message_id, payload) VALUES ($1, $2, $3, $4)`
	sqlInsertEntry  = `INSERT INTO {schema}.storm_entry (key, kind, message_id) VALUES ($1, $2, $3)`
)

// The statements that read the evidence. Each sees the rows committed before it begins: call them while
// nothing runs.
const (
	sqlReadRows    = `SELECT key || n, state, attempts, undo_attempts, digest, undo_digest FROM {schema}.inbox ORDER BY key, n`
	sqlReadParked  = `SELECT coalesce(key || n, ''), kind, state, reason, convert_from(message_id, 'UTF8'), payload, attempts FROM {schema}.parked ORDER BY id`
	sqlReadEffects = `SELECT key, kind, message_id, payload FROM {schema}.storm_effect ORDER BY id`
	sqlReadEntries = `SELECT key, kind, message_id FROM {schema}.storm_entry ORDER BY id`
)

// The kinds, as they are stored.
const (
	Action       = "action"
	Compensation = "compensation"
)

// A Message is a published message, with all its copies. All messages are of one scope, and no two steps have
// a key in common: Key, with n appended, is the whole identity.
type Message struct {
	ID, Key, Kind string
	Payload       []byte
	Copies        int // how often it was published; 0 is once
}

// A Row is a row of the inbox.
type Row struct {
	Key, State         string
	Attempts, Undone   int // entries that are counted, of the action and the compensation
	Digest, UndoDigest []byte
}

// A Parked is a parked message or a dead letter.
type Parked struct {
	Key, Kind, State, Reason, MessageID string
	Payload                             []byte
	Attempts                            int
}

// An Effect is the row of a handler in its transaction.
type Effect struct {
	Key, Kind, MessageID string
	Payload              []byte
}

// An Entry is one entry into a handler, noted in a separate transaction.
type Entry struct{ Key, Kind, MessageID string }

// Evidence is the whole state of a schema at rest.
type Evidence struct {
	Published []Message
	Rows      []Row
	Parked    []Parked
	Effects   []Effect
	Entries   []Entry
}

// A Ledger is the place where the handlers under test note their work.
type Ledger struct {
	db     *pgxpool.Pool // not that of the consumer, whose connections its handlers hold
	schema string
}

// NewLedger returns the ledger of schema, which has the tables of
// [SQLCreateTables]. db is only for it.
func NewLedger(db *pgxpool.Pool, schema string) *Ledger { return &Ledger{db: db, schema: schema} }

// Enter notes an entry into a handler. It has committed when Enter returns nil.
func (l *Ledger) Enter(ctx context.Context, m Message) error {
	return l.executeStatement(ctx, sqlInsertEntry, m.Key, m.Kind, m.ID)
}

// Effect leaves an effect in the handler's transaction.
func (l *Ledger) Effect(ctx context.Context, tx pgx.Tx, m Message) error {
	if _, err := tx.Exec(ctx, sqlschema.Bind(l.schema, sqlInsertEffect), m.Key, m.Kind, m.ID, m.Payload); err != nil {
		return fmt.Errorf("consumerstorm: leave effect: %w", err)
	}
	return nil
}

func (l *Ledger) executeStatement(ctx context.Context, statement string, args ...any) error {
	if _, err := l.db.Exec(ctx, sqlschema.Bind(l.schema, statement), args...); err != nil {
		return fmt.Errorf("consumerstorm: ledger: %w", err)
	}
	return nil
}

// Read returns the evidence in the schema. The caller gives the published messages, which the schema does not
// hold.
func (l *Ledger) Read(ctx context.Context, published []Message) (e Evidence, err error) {
	e.Published = published
	if e.Rows, err = collectRows[Row](ctx, l, sqlReadRows); err != nil {
		return e, err
	}
	if e.Parked, err = collectRows[Parked](ctx, l, sqlReadParked); err != nil {
		return e, err
	}
	if e.Effects, err = collectRows[Effect](ctx, l, sqlReadEffects); err != nil {
		return e, err
	}
	e.Entries, err = collectRows[Entry](ctx, l, sqlReadEntries)
	return e, err
}

func collectRows[T any](ctx context.Context, l *Ledger, statement string) ([]T, error) {
	rows, _ := l.db.Query(ctx, sqlschema.Bind(l.schema, statement))
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("consumerstorm: read evidence: %w", err)
	}
	return all, nil
}

func digestPayload(payload []byte) [sha256.Size]byte { return sha256.Sum256(payload) }
