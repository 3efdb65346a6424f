package flow

import (
	"context"
	"errors"
	"reflect"

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
	OnEnd   EndFunc // nil: none; the machine's plan says the same
}

// An EndFunc is called in the transaction that ends an instance. phase is the one in which it ends.
type EndFunc func(ctx context.Context, tx pgx.Tx, t Turn, state any, phase machine.Phase, reason string) error

// Functions are those of a step.
type Functions struct {
	When     func(state any) bool // nil: always
	Do, Undo Action
}

// An Action is the action of a step, or its compensation. Which fields are set depends on its kind.
type Action struct {
	Body   func(state any) (any, error)         // of a Remote's command; the first state of a Nested
	Codec  outbox.Codec                         // of a Remote's command; nil: JSON
	Result func(state any, result []byte) error // puts the result into the state; nil: the result is ignored
	Local  func(ctx context.Context, tx pgx.Tx, t Turn, state any) error
	Nested *Flow

	// The Go types of a Remote's command and result, and of the state of a Nested. They are for descriptions. A nil
	// BodyType is that of a command without body.
	BodyType, ResultType reflect.Type
}

// A Codec turns the state of instances into bytes, and back.
type Codec struct {
	Encode func(state any) ([]byte, error)
	Decode func(data []byte) (state any, err error)
}

// Name returns the name of the definition.
func (f *Flow) Name() string { return f.Machine.Plan().Name }

// Version returns the version of the definition.
func (f *Flow) Version() int { return f.Machine.Plan().Version }

// An Instance is one run of a saga.
type Instance struct {
	ID, Root   string // UUIDv7; Root is the ID of the outermost instance
	Scope, Key string
	Path       string // the N of its step in the saga around it; of the outermost "", or a dot and its incarnation
	Progress   machine.Progress
	State      []byte // encoded
}

// ErrUnfit reports a result, or a state, that does not have the type that the definition gives it. The stored
// instance is unchanged.
var ErrUnfit = errors.New("does not fit the definition")

// flowOf reads a definition. Package saga sets it.
var flowOf func(plan any) *Flow

// RegisterPlans tells [FlowOfPlan] how to read a definition. Package saga calls it, once, when the process starts.
func RegisterPlans(of func(plan any) *Flow) struct{} {
	flowOf = of
	return struct{}{}
}

// FlowOfPlan returns the flow of a plan of package saga. Packages of this module use it; the public type hides it.
func FlowOfPlan(plan any) *Flow { return flowOf(plan) }
