package saga

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// ErrInvalid reports a definition that cannot work.
var ErrInvalid = machine.ErrInvalid

// A Step is a part of a saga whose state has the type S; the Step has either one action (Do), or several steps (All or
// Seq).
type Step[S any] struct {
	Name string // name of the step, which must match [a-z0-9][a-z0-9-]{0,62} and be unique in the definition; required

	Do   Action[S] // the action, which is a [Remote], a [Local] or a [Nested]; required, unless the step has All or Seq
	Undo Action[S] // the compensation, which has the same kind as Do ([Remote] or [Local]); leave Undo empty if Do is a [Nested], which undoes itself; default: none

	All []Step[S] // steps that begin at the same time; All is done when each of its steps is done; default: none
	Seq []Step[S] // steps that run one after the other, for example within All; default: none

	// Pivot marks the step that cannot be undone; after this step is done, no step of the saga is undone. Steps behind
	// the pivot have no Undo, and a Retry of two attempts or more. Default: false.
	Pivot bool

	// When decides whether the step runs: if When returns false, the saga skips the step. It is called when the step's
	// turn comes, and must not change the state. Default: always.
	When func(s *S) bool

	// Deadline is the longest wait for the reply to the command of the step. Allow for the queue, for the participant's
	// retries and, unless its step is Single, for the batch that the command is handled in. OnDeadline says what follows.
	// It is at most ten years, and a Local cannot have one. Default: none; without a reply, the step is stuck after
	// [Options].Patience.
	Deadline time.Duration

	// OnDeadline is [Undo] or [Wait]. With Undo the saga compensates after the Deadline, this step included, since its
	// effect is not known. With Wait it goes on waiting: for a dead letter without limit, for a missing reply until
	// [Options].Patience after the command, when the step is stuck. A later reply still counts. Default: Undo before the
	// pivot; the pivot, and a step behind it, is stuck instead, and cannot have Undo.
	OnDeadline Policy

	// OnDeadLetter is what follows if the command of a [Remote] becomes a dead letter of its participant. With [Wait]
	// the saga waits for a redrive, at most until the Deadline; it compensates nothing, because a provider that is down
	// is no decision of the business. With [Undo], which a step from the pivot on cannot have, it compensates at once,
	// this step included. After [consumer.Park] the saga waits under either policy. Default: Wait.
	OnDeadLetter Policy

	// If a participant or a nested saga rejects the step, Retry limits the number of attempts; each attempt is a new
	// command with its own number. A failure is no rejection: the participant tries its handler again, as often as its
	// [consumer.Step] has MaxAttempts. For a Local, Retry limits the attempts after errors. Default: one attempt; if Do is
	// a Local, 10 attempts.
	Retry Retry
	// If Undo is a [Local], UndoRetry limits the attempts after errors. A participant has its own attempts,
	// so UndoRetry is an error there. Default: 10 attempts.
	UndoRetry Retry
}

// A Policy says what a saga does when a step misses its deadline or its command becomes a dead letter. It may change without a new
// version: the process that moves an instance follows its own definition.
type Policy = machine.Policy

// The policies.
const (
	Undo = machine.PolicyUndo // compensate, the step included
	Wait = machine.PolicyWait // for the participant's reply
)

// A Retry limits the attempts at a step. The wait before the next attempt is Base, doubled after each, at most Cap.
type Retry struct {
	Attempts int           // the first included, at most 1,000
	Base     time.Duration // default: 1 s
	Cap      time.Duration // default: 5 min
}

// A Plan is a [Definition] of any state.
type Plan interface {
	Name() string
	Version() int
	Hash() string
	String() string

	compiledFlow() *flow.Flow
	nestingDepth() int
	nestedPlans() []Plan
}

// A Definition is the plan of a saga. It never changes once it is defined.
type Definition[S any] struct {
	flow     *flow.Flow
	children []Plan
	levels   int // of sagas, itself counted
}

// Define returns the definition of a saga whose instances have a state of type S, stored as JSON of at most 1 MiB.
// Raise the version whenever the steps change: an instance keeps the version that it began with, so a binary has to
// know every version that is still live. Deadlines, retries, policies and functions may change without a new version.
//
// A name has at most 50 bytes. There are at most 100 steps, those of nested sagas not counted. Steps are at most
// 8 levels deep, sagas within sagas 3.
//
// An error is an [ErrInvalid] that names the step and the rule.
func Define[S any](name string, version int, steps ...Step[S]) (*Definition[S], error) {
	d := &Definition[S]{flow: &flow.Flow{State: newStateCodec[S]()}, levels: 1}
	b := builder[S]{definition: d}
	nodes, err := b.buildStepNodes(steps)
	if err != nil {
		return nil, fmt.Errorf("saga: %w: saga %s: %w", ErrInvalid, name, err)
	}
	if d.levels > flow.MaxLevels {
		return nil, fmt.Errorf("saga: %w: saga %s: sagas are nested deeper than %d", ErrInvalid, name, flow.MaxLevels)
	}
	return d.compilePlan(machine.Plan{Name: name, Version: version, Nodes: nodes})
}

// hashLength is how much of a plan's hash its instances remember: enough to tell apart two plans with one version.
const hashLength = 16

func (d *Definition[S]) compilePlan(p machine.Plan) (*Definition[S], error) {
	m, err := machine.Compile(p)
	if err != nil {
		return nil, fmt.Errorf("saga: %w", err)
	}
	is := *d
	f := *d.flow
	f.Machine, f.Hash = m, p.Hash()[:hashLength]
	is.flow = &f
	return &is, nil
}

// Within returns d with a deadline for the saga as a whole: it compensates if it has not sent its pivot, or, without
// one, not completed, after limit. Running instances have the limit of the binary that runs them.
func (d *Definition[S]) Within(limit time.Duration) (*Definition[S], error) {
	p := d.flow.Machine.Plan()
	p.Deadline = limit
	return d.compilePlan(p)
}

// OnEnd returns d with a function for its end: do is called in the transaction that ends an instance, after the last
// step, with the status [Completed] or [Compensated], and with the reason of a compensation. For example, do marks an
// order as paid or failed. A nested saga that completes and is compensated later ends twice, so do is called twice.
//
// do works as in [Local], and may change the state. Its Turn has no Step. An instance ends only when a call
// succeeds. After an error or a panic do is called again, after 1 s at first and 5 min at most. After ten attempts the
// instance is stuck. Until it has ended it can be cancelled, and the deadline of Within can pass.
//
// OnEnd can be added, changed and, by nil, removed without a new version. Instances that another binary ends, with a
// definition without OnEnd, have no call.
func (d *Definition[S]) OnEnd(do func(ctx context.Context, tx pgx.Tx, t Turn, s *S, status Status, reason string) error) *Definition[S] {
	p := d.flow.Machine.Plan()
	p.OnEnd = do != nil
	is := Must(d.compilePlan(p)) // OnEnd breaks no rule of a plan
	is.flow.OnEnd = nil
	if do != nil {
		is.flow.OnEnd = func(ctx context.Context, tx pgx.Tx, t flow.Turn, state any, phase machine.Phase, reason string) error {
			return do(ctx, tx, newTurn(t), state.(*S), Status(phase), reason)
		}
	}
	return is
}

// Must returns d, for a definition in a package variable. It panics if err is not nil.
func Must[S any](d *Definition[S], err error) *Definition[S] {
	if err != nil {
		panic(err)
	}
	return d
}

// Name returns the saga's name.
func (d *Definition[S]) Name() string { return d.flow.Name() }

// Version returns the version of the plan.
func (d *Definition[S]) Version() int { return d.flow.Version() }

// Hash returns a digest of the plan: two definitions with the same name, version and steps have the same, in any
// process. Deadlines, retries, policies and functions are not in it.
func (d *Definition[S]) Hash() string { return d.flow.Machine.Plan().Hash() }

func (d *Definition[S]) compiledFlow() *flow.Flow { return d.flow }

func (d *Definition[S]) nestingDepth() int { return d.levels }

func (d *Definition[S]) nestedPlans() []Plan { return d.children }

// Other packages of this module read a definition by flow.FlowOfPlan.
var _ = flow.RegisterPlans(func(plan any) *flow.Flow { return plan.(Plan).compiledFlow() })

// Topic returns where the participants of the saga of that name send their replies. Declare the orchestrator's queue
// before the first command is published.
func Topic(name string) string { return flow.ReplyTopic(name) }

func newStateCodec[S any]() flow.Codec {
	return flow.Codec{
		Encode: func(state any) ([]byte, error) {
			data, err := json.Marshal(state)
			data = bytes.ToValidUTF8(data, []byte("\ufffd")) // a RawMessage may hold bytes that the table cannot
			if err == nil && len(data) > flow.MaxState {
				err = fmt.Errorf("it has %d bytes, more than %d", len(data), flow.MaxState)
			}
			return data, err
		},
		Decode: func(data []byte) (any, error) {
			s := new(S)
			return s, json.Unmarshal(data, s)
		},
	}
}
