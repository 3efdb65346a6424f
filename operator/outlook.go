package operator

import (
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/machine"
)

// An outlook is the course of a cancellation, without carrying it out.
type outlook struct {
	waves       [][]string // names of steps in the order of their compensation
	nothing     string     // why there are none
	cancellable bool
}

// tryCancel cancels a copy of p and lets each compensation succeed.
func tryCancel(m *machine.Machine, p *machine.Progress) (o outlook) {
	if p.Phase.Ended() {
		o.nothing = "it has ended"
		return o
	}
	trial := *p
	trial.Steps = slices.Clone(p.Steps)
	if p.Phase == machine.Running {
		if err := m.Apply(&trial, machine.Event{Kind: machine.Cancel}); err != nil {
			o.nothing = strings.TrimPrefix(err.Error(), machine.ErrRefused.Error()+": ")
			return o
		}
		o.cancellable = true
	}
	trial.Paused = false
	for trial.Phase == machine.Compensating {
		wave := undoWave(m, &trial)
		if len(wave) == 0 {
			break // a progress that no event leads to
		}
		o.waves = append(o.waves, wave)
	}
	if len(o.waves) == 0 {
		o.nothing = "no step that may have been done has a compensation"
	}
	return o
}

// undoWave lets the next compensations succeed and returns their steps. A step in flight may
// have an effect.
func undoWave(m *machine.Machine, p *machine.Progress) (wave []string) {
	for id := range p.Steps {
		s := &p.Steps[id]
		s.Resend, s.Result = false, nil
		switch {
		case s.State == machine.InFlight && m.Step(id+1).Undo != "":
			s.State = machine.Unknown
		case s.State == machine.UndoWaiting:
			s.Due = 0
		}
	}
	for _, task := range m.Next(p) {
		if task.Kind == machine.OnEnd {
			return nil // nothing is left to undo
		}
		_ = m.Apply(p, machine.Event{Kind: machine.Sent, Step: task.ID, Undo: true})
	}
	var undone []int
	for id := range p.Steps {
		if s := p.Steps[id].State; s == machine.Undoing || s == machine.UndoStuck {
			undone = append(undone, id+1)
			wave = append(wave, m.Step(id+1).Name)
		}
	}
	for _, id := range undone {
		_ = m.Apply(p, machine.Event{Kind: machine.Replied, Step: id, Undo: true, Attempt: p.Steps[id-1].Attempt})
	}
	return wave
}
