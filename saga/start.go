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
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/outbox"
)

// ErrKeyTaken reports that another saga has been started with the key. Nothing
// has changed.
var ErrKeyTaken = errors.New("saga: the key belongs to an instance of another saga")

// A Starter starts instances of a definition. It holds no state and may be used
// by any number of goroutines.
type Starter[S any] struct {
	d      *Definition[S]
	sql    queries
	writer *outbox.Writer
	tracer outbox.WriterTracer
}

// StarterOptions are what most callers leave alone.
type StarterOptions struct {
	Schema string // Postgres schema of the instances and the outbox: the orchestrator's; default: sagamill

	// Tracer tells the trace of the context that is given to Start, to which all
	// that the instance sends then belongs: see package telemetry. Default: none.
	Tracer outbox.WriterTracer
}

// NewStarter returns a Starter of d. It does no I/O. A nil opts means the
// defaults. Its only error names a Schema that is not a plain identifier, or a missing definition.
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
	return &Starter[S]{d: d, sql: newQueries(schema), writer: writer, tracer: opts.Tracer}, nil
}

// An ID names a saga. The zero ID is the saga of the idempotent request (package idemkey)
// that the context belongs to.
type ID struct {
	Scope, Key string // those of the request that begins it

	// Incarnation is that of the request's record: it tells the saga from others that the key
	// has been used for. Within an idempotent request an ID with a Key needs one:
	// [outbox.NoIncarnation] for a saga that has none. Default: none.
	Incarnation string
}

// A Started is what Start has found or made.
type Started struct {
	Address Address // by which [Instances] find it
	ID      string  // of the instance, UUIDv7: the correlation id of its messages
	Version int     // of the definition that it runs by
	Status  Status
	Existed bool // it was started before, with this key
}

// Start begins an instance in tx, with state as its first: its row and its first
// commands are stored, and a first step that is [Local] is done. If tx commits,
// the saga runs to its end; if it rolls back, it never was. One ID is one instance:
// with an ID that was used before, Start returns that instance, whatever its state, and
// changes nothing; of two callers at once the second waits for the first's transaction.
//
// Behind package idemkey, give the zero ID: a key that is used again after its record has
// expired then begins another instance. An ID without incarnation names one instance for as
// long as instances are kept ([Options].Retention, 30 days): who uses its key again is given an
// instance that Existed, and has to be told so. After an error tx must be
// rolled back: an [ErrKeyTaken], what the ID, state or the first commands are wrong with, or PostgreSQL's.
// Only the caller knows when tx has committed: see [outbox.Relay.Wake].
func (s *Starter[S]) Start(ctx context.Context, tx pgx.Tx, id ID, state S) (Started, error) {
	begun, err := s.begin(ctx, id)
	if err != nil {
		return Started{}, err
	}
	begun.tx = tx
	existed, err := begun.begin(ctx, s.d.flow, &state)
	if err != nil {
		return Started{}, sqlschema.Explain(err)
	}
	if existed {
		return s.existing(ctx, tx, begun.row)
	}
	if err := s.send(ctx, begun); err != nil {
		return Started{}, fmt.Errorf("saga: start %s: %w", s.d.Name(), err)
	}
	return begun.started(), nil
}

// send stores the first commands of an instance that is stored.
func (s *Starter[S]) send(ctx context.Context, begun *session) error {
	if err := failpoint.Hit("saga/after-instance"); err != nil {
		return err
	}
	if len(begun.out) > 0 {
		if err := s.writer.Write(ctx, begun.tx, begun.traced()...); err != nil {
			return err
		}
	}
	return failpoint.Hit("saga/after-start")
}

// begin returns the work on a new instance.
func (s *Starter[S]) begin(ctx context.Context, named ID) (*session, error) {
	id, err := sagaid.Resolve(ctx, sagaid.ID(named))
	if err == nil {
		err = checkID(id)
	}
	if err != nil {
		return nil, fmt.Errorf("saga: start %s: %w", s.d.Name(), err)
	}
	begun := &session{sql: &s.sql, row: newRow(s.d.flow, id.Scope, id.Key, flow.Within(id.Incarnation, ""))}
	if s.tracer != nil {
		begun.row.trace[0], begun.row.trace[1] = traceheader.Keep(s.tracer.Trace(ctx))
	}
	return begun, nil
}

func checkID(id sagaid.ID) error {
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

func (i *row) address() Address { return Address{Scope: i.Scope, Key: i.Key, Path: i.Path} }

func (s *session) started() Started {
	return Started{Address: s.row.address(), ID: s.row.ID, Version: s.row.version, Status: s.row.status}
}

// Queue is [Starter.Start] for a caller that sends a batch in its transaction anyway:
// the instance begins with it, which saves its round trips. It does not look whether
// the ID was used before: if it was, the batch fails, by an error that [Exists] tells from
// others. So it is for callers that have seen to that, as by package idemkey. A saga whose first
// step is not Remote cannot be begun so; that is an error, and nothing is added to batch. No trace
// is noted but that of ctx.
func (s *Starter[S]) Queue(ctx context.Context, batch *pgx.Batch, id ID, state S) (Started, error) {
	begun, err := s.begin(ctx, id)
	if err != nil {
		return Started{}, err
	}
	begun.claim = func(context.Context) error { return errors.New("its first step needs the transaction") }
	args, err := begun.queue(ctx, s.d.flow, &state)
	if err == nil {
		err = outbox.Validate(begun.out...)
	}
	if err != nil {
		return Started{}, fmt.Errorf("saga: start %s: %w", s.d.Name(), err)
	}
	batch.Queue(s.sql.addInstance, args...)
	if err := s.writer.Queue(ctx, batch, begun.traced()...); err != nil {
		return Started{}, fmt.Errorf("saga: start %s: %w", s.d.Name(), err)
	}
	return begun.started(), nil
}

// Exists reports whether err says that an instance with its key was started before.
func Exists(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == uniqueViolation && e.ConstraintName == "saga_pkey"
}

// uniqueViolation is PostgreSQL's code.
const uniqueViolation = "23505"

func (s *Starter[S]) existing(ctx context.Context, tx pgx.Tx, at *row) (Started, error) {
	i, err := found(scanRow(tx.QueryRow(ctx, s.sql.readInstance, at.Scope, at.Key, at.Path)))
	if err != nil {
		return Started{}, err
	}
	if i.name != s.d.Name() {
		return Started{}, fmt.Errorf("%w: %s", ErrKeyTaken, i.name)
	}
	return Started{Address: i.address(), ID: i.ID, Version: i.version, Status: i.status, Existed: true}, nil
}
