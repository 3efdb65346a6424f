package saga

import (
	"encoding/json"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// An Action is what a step does, or what undoes it. Make one with [Remote], [Tell], [Local] or [Nested].
type Action[S any] struct {
	Topic string // of a Remote: where its command is published
	Type  string // of that command; default: Topic

	kind  machine.Kind
	run   flow.Action
	child Plan
}

// Remote returns an Action that sends a command to the participant that listens to topic. body makes the command
// from the saga's state, which it must not change; result puts the participant's answer into the state. Either may
// be nil, and then write the types out: a command without body is null, and the answer is ignored. An answer that is
// no R makes the reply a dead letter, and leaves the instance as it was. The participant gets scope, key and, as the
// correlation id, the instance's id.
//
// An Undo may be sent although no result has come, after a deadline or a cancellation: the participant knows by the
// key what to undo.
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

// Tell is [Remote] for a step whose result is ignored, as for most that undo something.
func Tell[S, C any](topic string, body func(s *S) C) Action[S] {
	return Remote[S, C, any](topic, body, nil)
}

// Nested returns an Action that runs another saga as a part of this one: under the same key, with its own state,
// which begin makes and end takes over. It is done when the other saga has completed, and rejected when that has
// compensated. Undoing it compensates the other saga, also if that has completed. So a saga with a pivot can be
// nested at the pivot or behind it only.
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
