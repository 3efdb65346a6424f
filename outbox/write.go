package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/sagaid"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/traceheader"
)

// A Writer stores messages inside the caller's transaction. It holds no state and may be used
// by any number of goroutines.
type Writer struct {
	sql    queries
	tracer WriterTracer
}

// WriterOptions are settings that most callers leave at their defaults.
type WriterOptions struct {
	Schema string // PostgreSQL schema of the outbox; default: sagamill

	// If a message has no trace, Tracer adds the trace that the context of Write has: see package telemetry. Default:
	// no trace is added.
	Tracer WriterTracer
}

// A WriterTracer knows the trace of a context, such as that of a request. Package telemetry
// has one. It must be safe for concurrent use.
type WriterTracer interface {
	// Trace returns the headers [HeaderTraceParent] and [HeaderTraceState] of ctx, or "" if
	// it belongs to no trace.
	Trace(ctx context.Context) (parent, state string)
}

// NewWriter returns a Writer. A nil opts means the defaults. Its only error names a Schema
// that is not a plain identifier.
func NewWriter(opts *WriterOptions) (*Writer, error) {
	if opts == nil {
		opts = &WriterOptions{}
	}
	schema := cmp.Or(opts.Schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("outbox: WriterOptions.Schema: %w", err)
	}
	return &Writer{sql: newQueries(schema), tracer: opts.Tracer}, nil
}

// Write stores msgs in tx, in order. If tx commits, each of them is published at least once;
// if it rolls back, none ever is. Call it as late in tx as possible: the order of the inserts
// is the order of publishing.
//
// An [ErrInvalid] names the message, the field and the limit. Nothing was sent to the database
// then, and tx stays usable. Any other error is PostgreSQL's and leaves tx to be rolled back.
// Write does not wake the relay, since only the caller knows when tx has committed: see
// [Relay.Wake].
//
// In an idempotent request (ctx is that of a handler behind package idemkey), messages without
// Scope and Key belong to the request's saga. Messages that name them and no Incarnation are
// an [ErrInvalid].
func (w *Writer) Write(ctx context.Context, tx pgx.Tx, msgs ...Message) error {
	inserts, err := w.buildInserts(ctx, msgs)
	if err != nil {
		return err
	}
	for _, insert := range inserts {
		if _, err := tx.Exec(ctx, insert.sql, insert.args...); err != nil {
			return fmt.Errorf("outbox: store messages: %w", sqlschema.Explain(err))
		}
	}
	return nil
}

// Queue is [Writer.Write] for a caller that sends a batch in its transaction anyway: the
// messages travel with it, which saves their round trip. They are stored if the batch is sent
// and succeeds. An [ErrInvalid] adds nothing to batch.
func (w *Writer) Queue(ctx context.Context, batch *pgx.Batch, msgs ...Message) error {
	inserts, err := w.buildInserts(ctx, msgs)
	if err != nil {
		return err
	}
	for _, insert := range inserts {
		batch.Queue(insert.sql, insert.args...)
	}
	return nil
}

// An insertStatement is an INSERT with its arguments.
type insertStatement struct {
	sql  string
	args []any
}

// buildInserts validates msgs and returns the statements that store them: one for messages
// that are published next, and one for delayed ones.
func (w *Writer) buildInserts(ctx context.Context, msgs []Message) (inserts []insertStatement, err error) {
	if msgs, err = resolveSagaIDs(ctx, msgs); err != nil {
		return nil, err
	}
	if err := Validate(msgs...); err != nil {
		return nil, err
	}
	w.addTraceHeaders(ctx, msgs)
	var immediate, delayed []*Message
	for i := range msgs {
		m := &msgs[i]
		if m.Delay > 0 {
			delayed = append(delayed, m)
		} else {
			immediate = append(immediate, m)
		}
	}
	if len(immediate) > 0 {
		insert, err := w.buildImmediateInsert(immediate)
		if err != nil {
			return nil, err
		}
		inserts = append(inserts, insert)
	}
	if len(delayed) > 0 {
		c, err := transposeMessages(delayed, keepComplete)
		if err != nil {
			return nil, err
		}
		inserts = append(inserts, insertStatement{w.sql.insertDelayed, append(c.unnestArgs(), c.delays)})
	}
	return inserts, nil
}

// buildImmediateInsert returns the statement that stores msgs in the log. For the few messages
// of most transactions a VALUES list costs the server a third of unnest with its sort.
func (w *Writer) buildImmediateInsert(msgs []*Message) (insertStatement, error) {
	if len(msgs) > maxValues {
		c, err := transposeMessages(msgs, outboxsql.Compact)
		return insertStatement{w.sql.insertMessages, c.unnestArgs()}, err
	}
	args := make([]any, 0, len(msgs)*messageColumns)
	for _, m := range msgs {
		var err error
		if args, err = m.appendColumnValues(args); err != nil {
			return insertStatement{}, err
		}
	}
	return insertStatement{w.sql.insertValues[len(msgs)-1], args}, nil
}

// resolveSagaIDs returns a copy of msgs. Messages that name no saga get the one of the request
// that ctx belongs to.
func resolveSagaIDs(ctx context.Context, msgs []Message) ([]Message, error) {
	resolved := slices.Clone(msgs)
	for i := range resolved {
		m := &resolved[i]
		id, err := sagaid.Resolve(ctx, sagaid.ID{Scope: m.Scope, Key: m.Key, Incarnation: m.Incarnation})
		if err != nil {
			return nil, fmt.Errorf("%w: %w (message %d of %d)", ErrInvalid, err, i+1, len(resolved))
		}
		m.Scope, m.Key, m.Incarnation = id.Scope, id.Key, id.Incarnation
	}
	return resolved, nil
}

var traceLimits = traceheader.Limits{Count: MaxHeaders, Bytes: MaxHeaderBytes}

// addTraceHeaders gives msgs the trace headers of ctx. A message that has its own, or no room
// for them, stays as it is.
func (w *Writer) addTraceHeaders(ctx context.Context, msgs []Message) {
	if w.tracer == nil {
		return
	}
	parent, state := w.tracer.Trace(ctx)
	if parent == "" {
		return
	}
	for i := range msgs {
		msgs[i].Headers = traceheader.Add(msgs[i].Headers, traceLimits, parent, state)
	}
}

// appendColumnValues adds the stored values of m to args, in the order of the columns.
func (m *Message) appendColumnValues(args []any) ([]any, error) {
	id, err := parseMessageID(m.ID)
	if err != nil {
		return nil, err
	}
	headers, err := m.encodeHeaders()
	if err != nil {
		return nil, err
	}
	c := outboxsql.Compact(m.derivedColumns(id))
	return append(args, id, m.Topic, c.Type, m.Scope, m.Key, m.Step, m.storedN(), c.OrderingKey,
		c.Correlation, m.CausationID, c.ContentType, headers, m.payloadOrEmpty()), nil
}

// derivedColumns returns the columns that the log shortens, complete.
func (m *Message) derivedColumns(id uuid.UUID) outboxsql.Columns {
	return outboxsql.Columns{
		ID: id.String(), Topic: m.Topic, Scope: m.Scope, Key: m.Key, Causation: m.CausationID,
		Type: cmp.Or(m.Type, m.Topic), Correlation: cmp.Or(m.CorrelationID, id.String()),
		ContentType: cmp.Or(m.ContentType, outboxsql.DefaultContentType), OrderingKey: m.orderingKeyOrDefault(),
	}
}

// encodeHeaders returns the headers as JSON, and nil if there are none.
func (m *Message) encodeHeaders() (*string, error) {
	if len(m.Headers) == 0 {
		return nil, nil
	}
	encoded, err := json.Marshal(m.Headers)
	if err != nil {
		return nil, fmt.Errorf("%w: headers: %w", ErrInvalid, err)
	}
	text := string(encoded)
	return &text, nil
}

// payloadOrEmpty returns the payload, never nil, which would be NULL.
func (m *Message) payloadOrEmpty() []byte {
	if m.Payload == nil {
		return []byte{}
	}
	return m.Payload
}

// messageArrays are messages with an array for each column, for unnest.
type messageArrays struct {
	ids                                              []pgtype.UUID // pgx can encode these without knowing the column's type
	topics, types, scopes, keys, steps, ns, ordering []string
	correlations, causations, contentTypes           []string
	headers                                          []*string
	payloads                                         [][]byte
	delays                                           []int64 // microseconds
}

// transposeMessages turns msgs into an array for each column. form is the form of the derived columns.
func transposeMessages(msgs []*Message, form func(outboxsql.Columns) outboxsql.Columns) (c messageArrays, err error) {
	for _, m := range msgs {
		id, err := parseMessageID(m.ID)
		if err != nil {
			return c, err
		}
		headers, err := m.encodeHeaders()
		if err != nil {
			return c, err
		}
		derived := form(m.derivedColumns(id))
		c.ids = append(c.ids, pgtype.UUID{Bytes: id, Valid: true})
		c.topics = append(c.topics, m.Topic)
		c.types = append(c.types, derived.Type)
		c.scopes = append(c.scopes, m.Scope)
		c.keys = append(c.keys, m.Key)
		c.steps = append(c.steps, m.Step)
		c.ns = append(c.ns, m.storedN())
		c.ordering = append(c.ordering, derived.OrderingKey)
		c.correlations = append(c.correlations, derived.Correlation)
		c.causations = append(c.causations, m.CausationID)
		c.contentTypes = append(c.contentTypes, derived.ContentType)
		c.headers = append(c.headers, headers)
		c.payloads = append(c.payloads, m.payloadOrEmpty())
		c.delays = append(c.delays, m.Delay.Round(time.Microsecond).Microseconds())
	}
	return c, nil
}

// unnestArgs returns the arguments of sqlInsertMessages. Those of sqlInsertDelayed end with
// the delays besides.
func (c *messageArrays) unnestArgs() []any {
	return []any{c.ids, c.topics, c.types, c.scopes, c.keys, c.steps, c.ns, c.ordering,
		c.correlations, c.causations, c.contentTypes, c.headers, c.payloads}
}

// keepComplete is the form of messages in outbox_held.
func keepComplete(c outboxsql.Columns) outboxsql.Columns { return c }

// orderingKeyOrDefault returns the ordering key, by default that of the saga.
func (m *Message) orderingKeyOrDefault() string {
	return cmp.Or(m.OrderingKey, outboxsql.SagaKey(m.Scope, m.Key))
}

// parseMessageID returns id as a UUID, and a new one if id is empty.
func parseMessageID(id string) (uuid.UUID, error) {
	if id == "" {
		return uuid.NewV7()
	}
	parsed, err := uuid.Parse(id)
	if err != nil {
		return uuid.Nil, fmt.Errorf("%w: ID is not a UUID", ErrInvalid)
	}
	return parsed, nil
}

// sqlInsertMessages stores a batch in the caller's transaction. It takes no lock that another
// writer could wait for. The ORDER BY makes the ids rise in the order of the batch.
const sqlInsertMessages = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
SELECT message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
	$9::text[], $10::text[], $11::text[], $12::json[], $13::bytea[])
	WITH ORDINALITY AS m (message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, position)
ORDER BY position`

// sqlInsertValues stores a few messages as rows of a VALUES list. PostgreSQL inserts them in
// the order written.
const sqlInsertValues = `
INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload)
VALUES {rows}`

// maxValues is how many messages go into a VALUES list at most. messageColumns is the number
// of values that each has there.
const (
	maxValues      = 4
	messageColumns = 13
)

// sqlInsertDelayed stores messages that are due later. The database's clock decides when they
// are due; $14 is in microseconds.
const sqlInsertDelayed = `
INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload, state, due_at)
SELECT nextval(pg_get_serial_sequence('{schema}.outbox', 'id')), message_id, topic, type, scope, key, step, n, ordering_key,
	correlation_id, causation_id, content_type, headers, payload,
	'delayed', clock_timestamp() + delay * interval '1 microsecond'
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
	$9::text[], $10::text[], $11::text[], $12::json[], $13::bytea[], $14::bigint[])
	AS m (message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, headers, payload, delay)`

// numberValueRows returns n rows of parameters for a VALUES list, numbered from $1 on.
func numberValueRows(n int) string {
	rows := make([]string, n)
	for i := range rows {
		columns := make([]string, messageColumns)
		for j := range columns {
			columns[j] = "$" + strconv.Itoa(i*messageColumns+j+1)
		}
		rows[i] = "(" + strings.Join(columns, ", ") + ")"
	}
	return strings.Join(rows, ", ")
}
