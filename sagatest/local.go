package sagatest

import (
	"errors"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/saga"
)

// A ran is a local step that has run, with its error.
type ran struct {
	turn flow.Turn
	err  error
}

// describeRan returns the result of the step, for people.
func (r *ran) describeRan(hasTx bool) string {
	var rejected *saga.RejectedError
	switch {
	case r.err == nil && r.turn.Undo:
		return "undone"
	case r.err == nil:
		return "done"
	case errors.As(r.err, &rejected):
		return rejected.Error()
	}
	return "failed: " + explainError(r.err, hasTx, "WithTx")
}

// judgeLocal checks a local step that has just run. A step that panics, or uses up its attempts without an injected
// error, would hide the schedules after it.
func (sys *system) judgeLocal(s *modelState, path string, r *ran) {
	var rejected *saga.RejectedError
	if r.err == nil || sys.gives || errors.Is(r.err, errInjected) || errors.As(r.err, &rejected) {
		return
	}
	row := s.host.rows[path]
	name, again := labelOfEnd, row.Progress.End.Due != 0
	if id := row.flow.Machine.FindStep(r.turn.Step); id > 0 {
		state := row.Progress.Steps[id-1].State
		name, again = r.turn.Step, state == machine.Waiting || state == machine.UndoWaiting
	}
	if _, _, panicked := findPanic(r.err); panicked || !again {
		s.noteBroken("the local step %s fails: %s", name, explainError(r.err, sys.tx != nil, "Model.Tx"))
	}
}
