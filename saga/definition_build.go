package saga

import (
	"errors"
	"fmt"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// A builder turns the steps of a definition into nodes of its plan, and collects their functions.
type builder[S any] struct {
	definition *Definition[S]
	pivot      bool // the pivot is built
}

func (b *builder[S]) buildStepNodes(steps []Step[S]) ([]machine.Node, error) {
	nodes := make([]machine.Node, len(steps))
	for i := range steps {
		n, err := b.buildStepNode(&steps[i])
		if err != nil {
			return nil, fmt.Errorf("step %q %w", steps[i].Name, err)
		}
		nodes[i] = n
	}
	return nodes, nil
}

func (b *builder[S]) buildStepNode(s *Step[S]) (machine.Node, error) {
	n := machine.Node{
		Name: s.Name, Kind: s.Do.kind, Topic: s.Do.Topic, Type: s.Do.Type, Pivot: s.Pivot, Conditional: s.When != nil,
		Deadline: s.Deadline, OnDeadline: s.OnDeadline, OnDeadLetter: s.OnDeadLetter,
		Retry: machine.Retry(s.Retry), UndoRetry: machine.Retry(s.UndoRetry),
		Undo: s.Undo.kind, UndoTopic: s.Undo.Topic, UndoType: s.Undo.Type,
		ContentType: contentTypeOf(s.Do.Codec), UndoContentType: contentTypeOf(s.Undo.Codec),
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
		return n, b.buildActionNode(&n, s)
	}
	var err error
	n.Nodes, err = b.buildStepNodes(inner)
	return n, err
}

func contentTypeOf(c outbox.Codec) string {
	if c == nil {
		return ""
	}
	return c.ContentType()
}

// buildActionNode checks a step that has an action, and keeps its functions.
func (b *builder[S]) buildActionNode(n *machine.Node, s *Step[S]) error {
	f := flow.Functions{Do: s.Do.run, Undo: s.Undo.run}
	f.Do.Codec, f.Undo.Codec = s.Do.Codec, s.Undo.Codec
	if s.Do.Codec != nil && s.Do.kind != machine.Remote || s.Undo.Codec != nil && s.Undo.kind != machine.Remote {
		return errors.New("has a Codec, which is for the commands of a Remote")
	}
	if s.When != nil {
		f.When = func(state any) bool { return s.When(state.(*S)) }
	}
	b.pivot = b.pivot || s.Pivot
	if s.Do.kind == machine.Nested {
		if err := b.nestDefinition(n, s, &f); err != nil {
			return err
		}
	} else if s.Undo.kind == machine.Nested {
		return errors.New("has a nested saga as its Undo")
	}
	if s.Do.kind == machine.Local && s.Do.run.Local == nil || s.Undo.kind == machine.Local && s.Undo.run.Local == nil {
		return errors.New("has a nil function")
	}
	b.definition.flow.Steps = append(b.definition.flow.Steps, f)
	return nil
}

// nestDefinition checks a step that runs another saga, and completes its node.
func (b *builder[S]) nestDefinition(n *machine.Node, s *Step[S], f *flow.Functions) error {
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
		if child.compiledFlow().Machine.HasPivot() {
			return fmt.Errorf("is the saga %s, which has a pivot and so could not be undone: it can be nested at the pivot or behind it", n.Saga)
		}
		n.Undo = machine.Nested
	}
	f.Do.Nested = child.compiledFlow()
	b.definition.children = append(b.definition.children, child)
	b.definition.levels = max(b.definition.levels, 1+child.nestingDepth())
	return nil
}
