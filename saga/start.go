package saga

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/sagaid"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/outbox"
)

// ErrKeyTaken reports that an instance of another saga has the key. Nothing has changed.
var ErrKeyTaken = errors.New("saga: the key belongs to an instance of another saga")

// A Starter starts instances of a definition. It holds no state and may be used by any number of goroutines.
type Starter[S any] struct {
	d      *Definition[S]
	sql    *statements
	writer *outbox.Writer
	tracer outbox.WriterTracer
}

// StarterOptions are settings that most callers leave at their defaults.
type StarterOptions struct {
	Schema string // PostgreSQL schema of the instances and the outbox; use the schema of the orchestrator; default: sagamill

	// Tracer returns the trace of the context that the caller passes to Start. All messages of the instance then belong
	// to that trace: see package telemetry. Default: none.
	Tracer outbox.WriterTracer
}

// NewStarter returns a Starter of d. It does no I/O. A nil opts means the defaults. Its only error names a Schema
// that is not a plain identifier, or a missing definition.
func NewStarter[S any](d *Definition[S], opts *StarterOptions) (*Starter[S], error) {
	if opts == nil {
		opts = &StarterOptions{}
	}
	if d == nil {
		return nil, errors.New("saga: NewStarter needs a definition")
	}
	schema := cmp.Or(opts.Schema, sqlschema.Default)
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema, Tracer: opts.Tracer})
	if err != nil {
		return nil, fmt.Errorf("saga: StarterOptions: %w", err)
	}
	return &Starter[S]{d: d, sql: newStatements(schema), writer: writer, tracer: opts.Tracer}, nil
}

// An ID names a saga. The zero ID is the saga of the idempotent request (package idemkey) that the context belongs
// to.
type ID struct {
	Scope, Key string // those of the request that starts it

	// Incarnation is that of the request's record. It tells the saga from others that were started with the same
	// key. Within an idempotent request an ID with a Key needs one: [outbox.NoIncarnation] for a saga that has none.
	// Default: none.
	Incarnation string
}

// A Started is the instance that Start has found or made.
type Started struct {
	Address Address // package operator finds the instance by it
	ID      string  // of the instance, UUIDv7: the correlation id of its messages
	Version int     // of the definition that it runs by
	Status  Status
	Reason  string // of a Status that is not Running or Completed: why the first [Local] steps were rejected
	Existed bool   // it was started before, with this key
}

// Start starts an instance in tx with state as its first: it stores the row and the first commands, and runs a first
// step that is [Local]. If tx commits, the saga runs to its end; if tx rolls back, the saga never existed. One ID is
// one instance. With an ID that was used before, Start returns that instance, whatever its state, and changes
// nothing. Of two callers at once the second waits for the first one's transaction.
//
// If the first step is a Local that rejects, the instance has compensated when Start returns: Status and Reason say so.
// Answer the request with them, because no message follows. If the instance shall not exist, roll tx back.
//
// Behind package idemkey, give the zero ID: a key that is used again after its record has expired then starts
// another instance. An ID without incarnation names one instance for as long as instances are kept
// ([Options].Retention, 30 days): a caller that uses its key again gets an instance that Existed, and should report
// that. After an error roll tx back. The error is an [ErrKeyTaken], names what is wrong with the ID, the state or
// the first commands, or is PostgreSQL's. Only the caller knows when tx has committed: see [outbox.Relay.Wake].
func (s *Starter[S]) Start(ctx context.Context, tx pgx.Tx, id ID, state S) (Started, error) {
	row, err := s.prepareNewRow(ctx, id)
	if err != nil {
		return Started{}, err
	}
	b := &beginning{transition: newTransition(s.sql, tx, row, s.d.flow), state: &state}
	b.starts = true
	existed, err := b.beginInstance(ctx)
	if err != nil {
		return Started{}, sqlschema.Explain(err)
	}
	if existed {
		return s.findExisting(ctx, tx, addressOfRow(row))
	}
	if err := s.writeFirstMessages(ctx, b.transition); err != nil {
		return Started{}, fmt.Errorf("saga: start %s: %w", s.d.Name(), err)
	}
	return startedFromRow(row), nil
}

// writeFirstMessages stores the first messages of an instance whose row is inserted.
func (s *Starter[S]) writeFirstMessages(ctx context.Context, t *transition) error {
	if err := failpoint.Hit("saga/after-instance"); err != nil {
		return err
	}
	if len(t.sent.AllUntraced()) > 0 {
		if err := s.writer.Write(ctx, t.tx, t.sent.AllTraced()...); err != nil {
			return err
		}
	}
	return failpoint.Hit("saga/after-start")
}

// Queue is [Starter.Start] for a caller that sends a batch in its transaction anyway: the instance starts with the
// batch, which saves round trips. Queue does not look whether the ID was used before: if it was, the batch fails, by
// an error that [Exists] recognizes. It is for callers that make sure of that, as package idemkey does. A saga
// whose first step is not Remote cannot start so: that is an error, and nothing is added to batch. The instance has
// no trace but that of ctx.
func (s *Starter[S]) Queue(ctx context.Context, batch *pgx.Batch, id ID, state S) (Started, error) {
	row, err := s.prepareNewRow(ctx, id)
	if err != nil {
		return Started{}, err
	}
	if err := s.queueInstanceRow(ctx, batch, row, &state); err != nil {
		return Started{}, fmt.Errorf("saga: start %s: %w", s.d.Name(), err)
	}
	return startedFromRow(row), nil
}

func (s *Starter[S]) queueInstanceRow(ctx context.Context, batch *pgx.Batch, row *sagarow.Row, state *S) error {
	t := newTransition(s.sql, nil, row, s.d.flow)
	t.insertEarly = func(context.Context) error { return errors.New("its first step needs the transaction") }
	if err := (&beginning{transition: t, state: state}).runFirstSteps(ctx); err != nil {
		return err
	}
	args, err := t.insertStatementArgs()
	if err == nil {
		err = outbox.Validate(t.sent.AllUntraced()...)
	}
	if err != nil {
		return err
	}
	batch.Queue(s.sql.addInstance, args...)
	return s.writer.Queue(ctx, batch, t.sent.AllTraced()...)
}

// prepareNewRow returns the row of a new instance, which is not stored yet.
func (s *Starter[S]) prepareNewRow(ctx context.Context, named ID) (*sagarow.Row, error) {
	id, err := sagaid.Resolve(ctx, sagaid.ID(named))
	if err == nil {
		err = checkSagaID(id)
	}
	if err != nil {
		return nil, fmt.Errorf("saga: start %s: %w", s.d.Name(), err)
	}
	row := newInstanceRow(s.d.flow, id.Scope, id.Key, flow.Within(id.Incarnation, ""))
	if s.tracer != nil {
		row.Trace[0], row.Trace[1] = traceheader.Keep(s.tracer.Trace(ctx))
	}
	return row, nil
}

func checkSagaID(id sagaid.ID) error {
	if id.Scope == "" || len(id.Scope) > outbox.MaxScope || !cleantext.Printable(id.Scope) {
		return fmt.Errorf("scope must be 1 to %d printable bytes", outbox.MaxScope)
	}
	if id.Incarnation != "" {
		if err := stepkey.CheckIncarnation(id.Incarnation); err != nil {
			return err
		}
	}
	return stepkey.CheckKey(id.Key)
}

// findExisting returns the instance that has the key.
func (s *Starter[S]) findExisting(ctx context.Context, tx pgx.Tx, at sagarow.Address) (Started, error) {
	row, err := s.sql.rows.ReadRow(ctx, tx, at)
	if err != nil {
		return Started{}, err
	}
	if row.Name != s.d.Name() {
		return Started{}, fmt.Errorf("%w: %s", ErrKeyTaken, row.Name)
	}
	started := startedFromRow(row)
	started.Existed = true
	return started, nil
}

func startedFromRow(row *sagarow.Row) Started {
	return Started{Address: Address(addressOfRow(row)), ID: row.ID, Version: row.Version, Status: Status(row.Status), Reason: row.Reason}
}

func addressOfRow(row *sagarow.Row) sagarow.Address {
	return sagarow.Address{Scope: row.Scope, Key: row.Key, Path: row.Path}
}

// uniqueViolation is PostgreSQL's code.
const uniqueViolation = "23505"

// Exists reports whether err means that an instance with its key was started before.
func Exists(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == uniqueViolation && e.ConstraintName == "saga_pkey"
}
