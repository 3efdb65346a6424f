package machine

// A Task is something to be done now. Whoever does it reports the event.
type Task struct {
	ID   int // of the step
	Kind TaskKind
}

// TaskKind is what is to be done.
type TaskKind string

// The kinds of tasks.
const (
	Do     TaskKind = "do"     // begin the step: Sent first, and then its outcome; or Passed, if its condition does not hold
	Undo   TaskKind = "undo"   // undo it: Sent, and then its outcome
	Resend TaskKind = "resend" // send its last message again, as it was: Sent
	Fold   TaskKind = "fold"   // put its Result into the instance's state: Folded, or Unfit
)

// Next returns what is to be done now: forward in the order of the plan, and back in
// the reverse one. Nothing is in it
// twice, and nothing that depends on something else in it. But the outcome of one
// task may be that the others are not to be done any more: whoever learns of an
// outcome asks again before the next task.
func (m *Machine) Next(p *Progress) []Task {
	if p.Phase.Ended() {
		return nil
	}
	for i := range p.Steps {
		if len(p.Steps[i].Result) > 0 { // before anything that may look at it, and before whoever gave it has gone
			return []Task{{i + 1, Fold}}
		}
	}
	if p.Paused {
		return nil
	}
	var tasks []Task
	if p.Phase == Running {
		m.forward(p, &m.root, &tasks)
	} else {
		m.backward(p, &m.root, &tasks)
	}
	return tasks
}

// forward adds what can be begun in s to tasks and reports whether all of s is
// done.
func (m *Machine) forward(p *Progress, s *span, tasks *[]Task) bool {
	if s.inner == nil {
		return p.leafForward(s.first, tasks)
	}
	finished := true
	for i := range s.inner {
		if !m.forward(p, &s.inner[i], tasks) {
			finished = false
			if s.node.Kind == Seq {
				break
			}
		}
	}
	return finished
}

func (p *Progress) leafForward(id int, tasks *[]Task) bool {
	s := &p.Steps[id-1]
	switch {
	case s.Resend:
		*tasks = append(*tasks, Task{id, Resend})
	case s.State == Idle, s.State == Waiting && s.Due == 0:
		*tasks = append(*tasks, Task{id, Do})
	}
	return s.State == Done || s.State == Skipped
}

// backward adds what can be undone in s to tasks and reports whether nothing
// of s is left to undo.
func (m *Machine) backward(p *Progress, s *span, tasks *[]Task) bool {
	if s.last <= p.Back {
		return true
	}
	if s.inner == nil {
		return m.leafBackward(p, s.first, tasks)
	}
	finished := true
	for i := len(s.inner) - 1; i >= 0; i-- {
		inner := &s.inner[i]
		if !m.backward(p, inner, tasks) {
			finished = false
			if s.node.Kind == Seq {
				break
			}
		}
	}
	return finished
}

func (m *Machine) leafBackward(p *Progress, id int, tasks *[]Task) bool {
	s := &p.Steps[id-1]
	if s.Resend {
		*tasks = append(*tasks, Task{id, Resend})
		return false
	}
	switch s.State {
	case Done, Unknown:
		if m.leaves[id-1].Undo == "" || s.void() {
			return true
		}
		*tasks = append(*tasks, Task{id, Undo})
		return false
	case UndoWaiting:
		if s.Due == 0 {
			*tasks = append(*tasks, Task{id, Undo})
		}
		return false
	case InFlight: // its reply or its deadline decides
		return m.leaves[id-1].Undo == ""
	case Undoing, UndoStuck:
		return false
	default: // Idle, Skipped, Rejected, Undone
		return true
	}
}

// void reports whether a step passes for done, of which it is known that it was not.
func (s *Step) void() bool { return s.State == Done && s.Override && !s.Doubt }

// settle ends a phase of which nothing is left.
func (m *Machine) settle(p *Progress) {
	var tasks []Task
	switch {
	case p.Phase == Running && m.forward(p, &m.root, &tasks) && !p.unfolded():
		p.Phase, p.Paused = Completed, false
	case p.Phase == Compensating && m.backward(p, &m.root, &tasks):
		m.compensated(p)
	}
}

func (p *Progress) unfolded() bool {
	for i := range p.Steps {
		if len(p.Steps[i].Result) > 0 {
			return true
		}
	}
	return false
}

// compensated ends the compensation: the instance with it, or only what comes after
// the step that it was to go back to.
func (m *Machine) compensated(p *Progress) {
	if p.Back == 0 {
		p.Phase, p.Paused = Compensated, false
		for i := range p.Steps {
			s := &p.Steps[i]
			s.Message, s.Due, s.Result = nil, 0, nil
			if s.State == InFlight { // it has nothing to undo, and nobody waits for it
				s.State = Unknown
			}
		}
		return
	}
	for i := p.Back; i < len(p.Steps); i++ {
		s := &p.Steps[i]
		*s = Step{Attempt: s.Attempt} // the next attempt is another one
	}
	p.Phase, p.Paused, p.Back = Running, true, 0
}
