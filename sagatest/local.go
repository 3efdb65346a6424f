package sagatest

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// A ran is what has become of a local step.
type ran struct {
	turn flow.Turn
	err  error
}

// A prompter knows which local step is at work. An [flow.Outlet] is not told.
type prompter struct{ turn *flow.Turn }

// prompted returns f with local steps that tell p, also those of the sagas that are nested in it.
func (p *prompter) prompted(f *flow.Flow) *flow.Flow {
	steps := slices.Clone(f.Steps)
	for i := range steps {
		for _, a := range []*flow.Action{&steps[i].Do, &steps[i].Undo} {
			if a.Local != nil {
				a.Local = p.local(a.Local)
			}
			if a.Nested != nil {
				a.Nested = p.prompted(a.Nested)
			}
		}
	}
	return &flow.Flow{Machine: f.Machine, Steps: steps, State: f.State}
}

type localFunc = func(ctx context.Context, tx pgx.Tx, t flow.Turn, state any) error

func (p *prompter) local(do localFunc) localFunc {
	return func(ctx context.Context, tx pgx.Tx, t flow.Turn, state any) error {
		p.turn = &t
		return do(ctx, tx, t, state)
	}
}

// end returns which local step was at work, and forgets it.
func (p *prompter) end() *flow.Turn {
	if p == nil {
		return nil
	}
	t := p.turn
	p.turn = nil
	return t
}

// said tells how it went, for people.
func (r *ran) said(hasTx bool) string {
	var rejected *flow.RejectedError
	switch {
	case r.err == nil && r.turn.Undo:
		return "undone"
	case r.err == nil:
		return "done"
	case errors.As(r.err, &rejected):
		return rejected.Error()
	}
	return "failed: " + explain(r.err, hasTx, "WithTx")
}

// judgeLocal looks at a local step that has just run in an instance. One that panics, or
// that has used up its attempts by its own errors, would hide what comes after it.
func (sys *system) judgeLocal(s *modelState, path string, r *ran) {
	var rejected *flow.RejectedError
	if r.err == nil || sys.gives || errors.Is(r.err, errInjected) || errors.As(r.err, &rejected) {
		return
	}
	row := s.host.rows[path]
	step := row.Progress.Steps[row.flow.Machine.Find(r.turn.Step)-1]
	_, _, panicked := panicOf(r.err)
	if again := step.State == machine.Waiting || step.State == machine.UndoWaiting; panicked || !again {
		s.breaks("the local step %s fails: %s", r.turn.Step, explain(r.err, sys.tx != nil, "Model.Tx"))
	}
}
