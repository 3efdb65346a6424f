package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sagamill/sagamill/internal/sagaid"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A Writer stores messages inside the caller's transaction. It holds no state
// and may be used by any number of goroutines.
type Writer struct {
	sql    queries
	tracer WriterTracer
}

// WriterOptions are what most callers leave alone.
type WriterOptions struct {
	Schema string // Postgres schema of the outbox; default: sagamill

	// Tracer adds the trace of the context that is given to Write to messages
	// without one: see package telemetry. Default: messages keep what they have.
	Tracer WriterTracer
}

// NewWriter returns a Writer. A nil opts means the defaults. Its only error
// names a Schema that is not a plain identifier.
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

// Write stores msgs in tx, in order. If tx commits, each of them is published
// at least once; if it rolls back, none ever is. Call it as late in tx as
// possible: the order of the inserts is the order of publishing.
//
// An [ErrInvalid] names the message, the field and the limit; nothing was sent
// to the database then and tx stays usable. Any other error is PostgreSQL's
// and leaves tx to be rolled back. Write does not wake the relay, since only
// the caller knows when tx has committed: see [Relay.Wake].
//
// In an idempotent request (ctx is that of a handler behind package idemkey), messages
// without Scope and Key belong to the request's saga. Messages that name them and no
// Incarnation are an [ErrInvalid].
func (w *Writer) Write(ctx context.Context, tx pgx.Tx, msgs ...Message) error {
	statements, err := w.statements(ctx, msgs)
	if err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := tx.Exec(ctx, s.sql, s.args...); err != nil {
			return fmt.Errorf("outbox: store messages: %w", sqlschema.Explain(err))
		}
	}
	return nil
}

// Queue is [Writer.Write] for a caller that sends a batch in its transaction
// anyway: the messages travel with it, which saves their round trip. They are
// stored if the batch is sent and succeeds. An [ErrInvalid] adds nothing to
// batch.
func (w *Writer) Queue(ctx context.Context, batch *pgx.Batch, msgs ...Message) error {
	statements, err := w.statements(ctx, msgs)
	if err != nil {
		return err
	}
	for _, s := range statements {
		batch.Queue(s.sql, s.args...)
	}
	return nil
}

// A statement is one with its arguments.
type statement struct {
	sql  string
	args []any
}

// Validate returns the [ErrInvalid] with which [Writer.Write] would refuse msgs, or
// nil.
func Validate(msgs ...Message) error {
	if len(msgs) > MaxBatch {
		return fmt.Errorf("%w: %d messages in one Write, the limit is %d", ErrInvalid, len(msgs), MaxBatch)
	}
	for i := range msgs {
		if err := msgs[i].check(); err != nil {
			return fmt.Errorf("%w (message %d of %d)", err, i+1, len(msgs))
		}
	}
	return nil
}

// identified returns msgs with the saga of the request that ctx belongs to, where they
// name none.
func identified(ctx context.Context, msgs []Message) ([]Message, error) {
	all := slices.Clone(msgs)
	for i := range all {
		m := &all[i]
		id, err := sagaid.Resolve(ctx, sagaid.ID{Scope: m.Scope, Key: m.Key, Incarnation: m.Incarnation})
		if err != nil {
			return nil, fmt.Errorf("%w: %w (message %d of %d)", ErrInvalid, err, i+1, len(all))
		}
		m.Scope, m.Key, m.Incarnation = id.Scope, id.Key, id.Incarnation
	}
	return all, nil
}

// statements returns what stores msgs.
func (w *Writer) statements(ctx context.Context, msgs []Message) (all []statement, err error) {
	if msgs, err = identified(ctx, msgs); err != nil {
		return nil, err
	}
	if err := Validate(msgs...); err != nil {
		return nil, err
	}
	w.addTrace(ctx, msgs)
	var now, later []*Message
	for i := range msgs {
		m := &msgs[i]
		if m.Delay > 0 {
			later = append(later, m)
		} else {
			now = append(now, m)
		}
	}
	// A VALUES list costs the server a third of what unnest and its sort do, for
	// the few messages that most transactions have.
	switch n := len(now); {
	case n > maxValues:
		c, err := turn(now)
		if err != nil {
			return nil, err
		}
		all = append(all, statement{w.sql.insertMessages, c.args()})
	case n > 0:
		args := make([]any, 0, n*messageColumns)
		for _, m := range now {
			if args, err = m.appendValues(args); err != nil {
				return nil, err
			}
		}
		all = append(all, statement{w.sql.insertValues[n-1], args})
	}
	if len(later) > 0 {
		c, err := turn(later)
		if err != nil {
			return nil, err
		}
		all = append(all, statement{w.sql.insertDelayed, append(c.args(), c.delays)})
	}
	return all, nil
}

// appendValues adds what is stored of m to args, in the order of the columns.
func (m *Message) appendValues(args []any) ([]any, error) {
	id, err := messageID(m.ID)
	if err != nil {
		return nil, err
	}
	headers, err := m.encodedHeaders()
	if err != nil {
		return nil, err
	}
	return append(args, id, m.Topic, cmp.Or(m.Type, m.Topic), m.Scope, m.Key, m.Step, m.n(), m.orderingKey(),
		cmp.Or(m.CorrelationID, id.String()), m.CausationID, cmp.Or(m.ContentType, defaultContentType), headers, m.bytes()), nil
}

const defaultContentType = "application/json"

// encodedHeaders returns nil if there are none.
func (m *Message) encodedHeaders() (*string, error) {
	if len(m.Headers) == 0 {
		return nil, nil
	}
	encoded, err := json.Marshal(m.Headers)
	if err != nil {
		return nil, fmt.Errorf("%w: headers: %w", ErrInvalid, err)
	}
	s := string(encoded)
	return &s, nil
}

// bytes returns the payload, never nil, which would be NULL.
func (m *Message) bytes() []byte {
	if m.Payload == nil {
		return []byte{}
	}
	return m.Payload
}

// columns are messages turned on their side, for unnest.
type columns struct {
	ids                                              []pgtype.UUID // which pgx can encode where nobody tells it the column's type
	topics, types, scopes, keys, steps, ns, ordering []string
	correlations, causations, contentTypes           []string
	headers                                          []*string
	payloads                                         [][]byte
	delays                                           []int64 // microseconds
}

// turn turns msgs on their side.
func turn(msgs []*Message) (c columns, err error) {
	for _, m := range msgs {
		id, err := messageID(m.ID)
		if err != nil {
			return c, err
		}
		headers, err := m.encodedHeaders()
		if err != nil {
			return c, err
		}
		c.ids = append(c.ids, pgtype.UUID{Bytes: id, Valid: true})
		c.topics = append(c.topics, m.Topic)
		c.types = append(c.types, cmp.Or(m.Type, m.Topic))
		c.scopes = append(c.scopes, m.Scope)
		c.keys = append(c.keys, m.Key)
		c.steps = append(c.steps, m.Step)
		c.ns = append(c.ns, m.n())
		c.ordering = append(c.ordering, m.orderingKey())
		c.correlations = append(c.correlations, cmp.Or(m.CorrelationID, id.String()))
		c.causations = append(c.causations, m.CausationID)
		c.contentTypes = append(c.contentTypes, cmp.Or(m.ContentType, defaultContentType))
		c.headers = append(c.headers, headers)
		c.payloads = append(c.payloads, m.bytes())
		c.delays = append(c.delays, m.Delay.Round(time.Microsecond).Microseconds())
	}
	return c, nil
}

func (c *columns) args() []any {
	return []any{c.ids, c.topics, c.types, c.scopes, c.keys, c.steps, c.ns, c.ordering,
		c.correlations, c.causations, c.contentTypes, c.headers, c.payloads}
}

// orderingKey puts scope and key side by side with a separator that neither
// may contain, so that two pairs never make the same ordering key.
func (m *Message) orderingKey() string {
	return cmp.Or(m.OrderingKey, m.Scope+"\x1f"+m.Key)
}

func messageID(id string) (uuid.UUID, error) {
	if id == "" {
		return uuid.NewV7()
	}
	parsed, err := uuid.Parse(id)
	if err != nil {
		return uuid.Nil, fmt.Errorf("%w: ID is not a UUID", ErrInvalid)
	}
	return parsed, nil
}
