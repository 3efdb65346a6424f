package flow

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// A Flow is a definition with its functions, without the type of its state.
type Flow struct {
	Machine *machine.Machine
	Hash    string      // the beginning of its plan's, which instances remember
	Steps   []Functions // by id, from 1 on: the first is Steps[0]
	State   Codec
}

// Functions are those of a step.
type Functions struct {
	When     func(state any) bool // nil: always
	Do, Undo Action
}

// An Action is one of a step's two sides. Which fields are set depends on its kind.
type Action struct {
	Body   func(state any) (any, error)         // of a Remote's command; the first state of a Nested
	Result func(state any, result []byte) error // puts the result into the state; nil: there is none
	Local  func(ctx context.Context, tx pgx.Tx, t Turn, state any) error
	Nested *Flow
}

// A Codec turns the state of instances into bytes, and back.
type Codec struct {
	Encode func(state any) ([]byte, error)
	Decode func(data []byte) (state any, err error)
}

// Name is that of the definition.
func (f *Flow) Name() string { return f.Machine.Plan().Name }

// Version is that of the definition.
func (f *Flow) Version() int { return f.Machine.Plan().Version }

// An Instance is one run of a saga.
type Instance struct {
	ID, Root   string // UUIDv7; Root is that of the outermost saga
	Scope, Key string
	Path       string // where it is nested: the N of its parent's step; "" outermost
	Progress   machine.Progress
	State      []byte // encoded
}

// A Turn is what a local step is told of the instance whose turn it is.
type Turn struct {
	ID         string // of the instance: the correlation id of its messages
	Scope, Key string
	Saga       string
	Version    int
	Step       string
	Undo       bool // the step is being undone
	Attempt    int

	out    *[]outbox.Message
	queued *[]Statement
}

// A Statement is SQL with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// Emit adds messages to the outbox, in the step's transaction. Scope, Key and
// CorrelationID default to those of the instance; Topic and Step are required.
func (t Turn) Emit(msgs ...outbox.Message) { *t.out = append(*t.out, msgs...) }

// Queue adds a statement to the step's transaction that is executed after the step has
// returned, where that is possible with the transaction's last round trip: it costs none of its own.
// If it fails then, so does the whole transaction, and the message that it was for is handled again: what
// must be able to fail as a step is executed with tx. It is one statement, with the limits of [pgx.Batch].
func (t Turn) Queue(sql string, args ...any) {
	*t.queued = append(*t.queued, Statement{sql, args})
}

// A Queuer is an [Outlet] that can execute statements with its transaction's last
// round trip.
type Queuer interface {
	Queue(statements []Statement)
}

// A Command is a message that a step sends.
type Command struct {
	Step, N     string
	Topic, Type string
	Nested      string // name of the nested saga that it is for
	Undo        bool
	Again       bool // it is sent once more, as it was
	Body        []byte
}

// A Child is a nested instance that is to begin.
type Child struct {
	Flow  *Flow
	Path  string
	State any
}

// An Outlet is where an instance acts. All of it belongs to one transaction.
type Outlet interface {
	// Command sends a command or a compensation to a participant, or, if Nested is
	// set, the order to compensate to the nested instance whose path is N.
	Command(ctx context.Context, c Command) error
	// Child begins a nested instance. One that is there already is left alone.
	Child(ctx context.Context, c Child) error
	// Emit stores messages of a local step.
	Emit(ctx context.Context, msgs []outbox.Message) error
	// Nested runs do, of which nothing is left in the database if it fails. An
	// error that is not do's own ends the transaction.
	Nested(ctx context.Context, do func(tx pgx.Tx) error) (failed, err error)
}

// A RejectedError is a step's own decision not to do what it was asked.
type RejectedError struct{ Reason string }

// Error returns the reason.
func (e *RejectedError) Error() string { return "rejected: " + e.Reason }

// ErrUnfit reports a result, or a state, that is not of the type that the
// definition gives it. The instance is as it was.
var ErrUnfit = errors.New("does not fit the definition")
