package saga

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// ErrInvalid reports a definition that cannot work.
var ErrInvalid = machine.ErrInvalid

// The limits of a definition.
const (
	MaxName     = machine.MaxName     // bytes of its name: 50
	MaxSteps    = machine.MaxSteps    // 100, those within others counted, the others not
	MaxDepth    = machine.MaxDepth    // of steps within steps: 8
	MaxNested   = flow.MaxLevels      // of sagas within sagas, the outermost counted: 3
	MaxDeadline = machine.MaxDeadline // ten years
	MaxAttempts = machine.MaxAttempts // 1,000
	MaxState    = 1 << 20             // bytes of an instance's state, as JSON
)

// A Step is a part of a saga whose state is an S: an action, which is set by Do, or
// several steps, which are set by All or Seq.
type Step[S any] struct {
	Name string // [a-z0-9][a-z0-9-]{0,62}, once in a definition

	Do   Action[S] // what it does: [Remote], [Local] or [Nested]
	Undo Action[S] // what undoes that, of the same kind; default: it is not undone. A nested saga undoes itself.

	All []Step[S] // steps that begin together, and are done when all are
	Seq []Step[S] // steps one after the other, such as within All

	// Pivot marks the step after which the saga only goes forward. Steps behind it have
	// no Undo, and a Retry of two attempts or more.
	Pivot bool

	// When says whether the step is done at all. It is asked when the step's turn
	// comes, and must not change the state. Default: always.
	When func(s *S) bool

	// Deadline is how long a reply is waited for. It has to allow for the queue, for the
	// batch that the command is handled in, unless the participant's step is Single, and for its retries. Then the saga compensates, this step
	// included, since it is not known what it has done; the pivot and what is behind it
	// is stuck instead. A Local cannot have one. Default: none, and after
	// [Options].Patience the step is stuck.
	Deadline time.Duration

	// Retry is for rejections by a participant or a nested saga, each attempt with
	// a command of its own; by default there is one attempt. For a Local it is for errors, by
	// default of 10 attempts. UndoRetry is for errors of a Local that undoes, by default of 10
	// attempts; a participant has a budget of its own, and cannot have one here.
	Retry, UndoRetry Retry
}

// A Retry says how often something is tried. The wait before the next attempt
// is Base, doubled after each, at most Cap.
type Retry struct {
	Attempts int           // the first included, at most MaxAttempts
	Base     time.Duration // default: 1 s
	Cap      time.Duration // default: 5 min
}

// An Action is what a step does, or what undoes it. Make one with [Remote], [Tell],
// [Local] or [Nested].
type Action[S any] struct {
	Topic string // of a Remote: where its command is published
	Type  string // of that command; default: Topic

	kind  machine.Kind
	run   flow.Action
	child Plan
}

// Remote returns an Action that sends a command to the participant that listens to
// topic. body makes the command from the saga's state, which it must not change;
// result puts the participant's answer into it. Either may be nil, and the types have to be
// written out then: a command without body is null, and what is answered is not looked at. A result that is no R makes a dead letter of
// the reply, and leaves the instance as it was.
// The participant finds scope, key and the instance's id, the correlation id, in what it
// is given.
//
// An Undo may be sent although no result has come, after a deadline or a cancellation:
// the participant knows by the key what there is to undo.
func Remote[S, C, R any](topic string, body func(s *S) C, result func(s *S, r R)) Action[S] {
	a := Action[S]{Topic: topic, Type: topic, kind: machine.Remote}
	if body != nil {
		a.run.Body = func(state any) (any, error) { return body(state.(*S)), nil }
	}
	if result != nil {
		a.run.Result = func(state any, data []byte) error {
			var r R
			if err := consumer.DecodeJSON(data, &r); err != nil {
				return err
			}
			result(state.(*S), r)
			return nil
		}
	}
	return a
}

// Tell is [Remote] for a step whose result is not looked at, as most that undo
// something are.
func Tell[S, C any](topic string, body func(s *S) C) Action[S] {
	return Remote[S, C, any](topic, body, nil)
}

// Nested returns an Action that runs another saga, as a part of this one: under the
// same key, with a state of its own, which begin makes and end takes over. It is
// done when the other has completed, and rejected when that has compensated
// itself. Undoing it compensates the other, also if it has completed. So a saga with
// a pivot can be nested at the pivot or behind it only.
func Nested[S, C any](d *Definition[C], begin func(s *S) C, end func(s *S, c C)) Action[S] {
	a := Action[S]{kind: machine.Nested}
	if d != nil {
		a.child = d
	}
	if begin != nil {
		a.run.Body = func(state any) (any, error) {
			c := begin(state.(*S))
			return &c, nil
		}
	}
	if end != nil {
		a.run.Result = func(state any, data []byte) error {
			var c C
			if err := json.Unmarshal(data, &c); err != nil {
				return err
			}
			end(state.(*S), c)
			return nil
		}
	}
	return a
}

// A Plan is a [Definition] of any state.
type Plan interface {
	Name() string
	Version() int
	Hash() string
	String() string

	// Flow is for packages of this module.
	Flow() *flow.Flow

	depth() int
	nested() []Plan
}

// A Definition is the plan of a saga. It never changes once it is defined.
type Definition[S any] struct {
	flow     *flow.Flow
	children []Plan
	levels   int // of sagas, itself counted
}

// Define returns the definition of a saga whose instances have a state of type S,
// which is kept as JSON. The version is raised whenever the steps change:
// instances keep the one that they began with, and finish with it, so that a binary has to
// know every version that is still live. What may change without is deadlines, retries and
// functions.
//
// An error is an [ErrInvalid] that names the step and the rule.
func Define[S any](name string, version int, steps ...Step[S]) (*Definition[S], error) {
	d := &Definition[S]{flow: &flow.Flow{State: codec[S]()}, levels: 1}
	b := builder[S]{d: d}
	nodes, err := b.nodes(steps)
	if err != nil {
		return nil, fmt.Errorf("saga: %w: saga %s: %w", ErrInvalid, name, err)
	}
	if d.levels > MaxNested {
		return nil, fmt.Errorf("saga: %w: saga %s: sagas are nested deeper than %d", ErrInvalid, name, MaxNested)
	}
	return d.compile(machine.Plan{Name: name, Version: version, Nodes: nodes})
}

func (d *Definition[S]) compile(p machine.Plan) (*Definition[S], error) {
	m, err := machine.Compile(p)
	if err != nil {
		return nil, fmt.Errorf("saga: %w", err)
	}
	is := *d
	is.flow = &flow.Flow{Machine: m, Hash: p.Hash()[:hashKept], Steps: d.flow.Steps, State: d.flow.State}
	return &is, nil
}

// hashKept is how much of a plan's hash its instances remember: enough to tell plans
// apart that somebody has given one version by mistake.
const hashKept = 16

// Within returns d with a deadline for the saga as a whole: if it has not sent its
// pivot, or, without one, not completed, after limit, it compensates. Instances that
// run have the limit of the binary that runs them.
func (d *Definition[S]) Within(limit time.Duration) (*Definition[S], error) {
	p := d.flow.Machine.Plan()
	p.Deadline = limit
	return d.compile(p)
}

// Must returns d, for a definition in a package variable. It panics if err is
// not nil.
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

// Hash returns a digest of the plan: two definitions with the same name, version
// and steps have the same, in any process. Deadlines, retries and functions are not in it.
func (d *Definition[S]) Hash() string { return d.flow.Machine.Plan().Hash() }

// Flow is for packages of this module.
func (d *Definition[S]) Flow() *flow.Flow { return d.flow }

// Topic returns where the participants of the saga of that name send their replies: the
// orchestrator's queue must be declared before the first command is published.
func Topic(name string) string { return "saga." + name }

func codec[S any]() flow.Codec {
	return flow.Codec{
		Encode: func(state any) ([]byte, error) {
			data, err := json.Marshal(state)
			data = bytes.ToValidUTF8(data, []byte("\ufffd")) // a RawMessage may hold anything, and the table cannot
			if err == nil && len(data) > MaxState {
				err = fmt.Errorf("it has %d bytes, more than %d", len(data), MaxState)
			}
			return data, err
		},
		Decode: func(data []byte) (any, error) {
			s := new(S)
			return s, json.Unmarshal(data, s)
		},
	}
}

// A builder turns steps into nodes, and collects their functions.
type builder[S any] struct {
	d     *Definition[S]
	pivot bool // has been seen
}

func (b *builder[S]) nodes(steps []Step[S]) ([]machine.Node, error) {
	nodes := make([]machine.Node, len(steps))
	for i := range steps {
		n, err := b.node(&steps[i])
		if err != nil {
			return nil, fmt.Errorf("step %q %w", steps[i].Name, err)
		}
		nodes[i] = n
	}
	return nodes, nil
}

func (b *builder[S]) node(s *Step[S]) (machine.Node, error) {
	n := machine.Node{
		Name: s.Name, Kind: s.Do.kind, Topic: s.Do.Topic, Type: s.Do.Type, Pivot: s.Pivot, Conditional: s.When != nil,
		Deadline: s.Deadline, Retry: machine.Retry(s.Retry), UndoRetry: machine.Retry(s.UndoRetry),
		Undo: s.Undo.kind, UndoTopic: s.Undo.Topic, UndoType: s.Undo.Type,
	}
	inner := s.All
	switch {
	case len(s.All) > 0 && len(s.Seq) > 0, s.Do.kind != "" && len(s.All)+len(s.Seq) > 0:
		return n, errors.New("has more than one of Do, All and Seq")
	case len(s.All) > 0:
		n.Kind = machine.All
	case len(s.Seq) > 0:
		n.Kind, inner = machine.Seq, s.Seq
	case s.Do.kind == "":
		return n, errors.New("has none of Do, All and Seq: make Do with Remote, Local or Nested")
	default:
		return n, b.leaf(&n, s)
	}
	var err error
	n.Nodes, err = b.nodes(inner)
	return n, err
}

func (b *builder[S]) leaf(n *machine.Node, s *Step[S]) error {
	f := flow.Functions{Do: s.Do.run, Undo: s.Undo.run}
	if s.When != nil {
		f.When = func(state any) bool { return s.When(state.(*S)) }
	}
	b.pivot = b.pivot || s.Pivot
	if s.Do.kind == machine.Nested {
		if err := b.nest(n, s, &f); err != nil {
			return err
		}
	} else if s.Undo.kind == machine.Nested {
		return errors.New("has a nested saga as its Undo")
	}
	if s.Do.kind == machine.Local && s.Do.run.Local == nil || s.Undo.kind == machine.Local && s.Undo.run.Local == nil {
		return errors.New("has a nil function")
	}
	b.d.flow.Steps = append(b.d.flow.Steps, f)
	return nil
}

func (b *builder[S]) nest(n *machine.Node, s *Step[S], f *flow.Functions) error {
	child := s.Do.child
	switch {
	case s.Undo.kind != "":
		return errors.New("is a nested saga, which undoes itself: it cannot have an Undo")
	case s.Do.run.Body == nil:
		return errors.New("is a nested saga without a function that makes its state")
	case child == nil:
		return errors.New("is a nested saga without a definition")
	}
	n.Saga = child.Name()
	if !b.pivot {
		if child.Flow().Machine.HasPivot() {
			return fmt.Errorf("is the saga %s, which has a pivot and so could not be undone: it can be nested at the pivot or behind it", n.Saga)
		}
		n.Undo = machine.Nested
	}
	f.Do.Nested = child.Flow()
	b.d.children = append(b.d.children, child)
	b.d.levels = max(b.d.levels, 1+child.depth())
	return nil
}

func (d *Definition[S]) depth() int { return d.levels }

func (d *Definition[S]) nested() []Plan { return d.children }
