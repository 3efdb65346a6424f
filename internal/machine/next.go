package machine

// A Task is something to do now. The caller does it, and reports it by an event.
type Task struct {
	ID   int // of the step
	Kind TaskKind
}

// TaskKind says what to do.
type TaskKind string

// The kinds of tasks, with the events that report them.
const (
	Do     TaskKind = "do"     // begin the step: Sent first, and then its outcome; or Passed, if its condition does not hold
	Undo   TaskKind = "undo"   // undo it: Sent, and then its outcome
	Resend TaskKind = "resend" // send its last message again, as it was: Sent
	Fold   TaskKind = "fold"   // put its Result into the instance's state: Folded, or Unfit
	OnEnd  TaskKind = "on-end" // call the function for the saga's end, step 0: EndDone, EndFailed or EndBroken
)

// Next lists the tasks: forward in the order of the plan, and back in reverse. No task is in the list twice, and none
// depends on another one in it. But the outcome of one task may cancel the others: after each event the caller asks
// again.
func (m *Machine) Next(p *Progress) []Task {
	if p.Phase.Ended() {
		return nil
	}
	for i := range p.Steps {
		if len(p.Steps[i].Result) > 0 { // before another step reads the state
			return []Task{{i + 1, Fold}}
		}
	}
	if p.Paused {
		return nil
	}
	var tasks []Task
	finished := false
	if p.Phase == Running {
		finished = m.planForward(p, &m.root, &tasks)
	} else {
		finished = m.planBackward(p, &m.root, &tasks)
	}
	if finished && m.plan.OnEnd && p.End.isDue() {
		tasks = append(tasks, Task{Kind: OnEnd})
	}
	return tasks
}

// planForward adds the steps of s that can begin to tasks, and reports whether all of s is done.
func (m *Machine) planForward(p *Progress, s *span, tasks *[]Task) bool {
	if s.inner == nil {
		return p.planStepForward(s.first, tasks)
	}
	finished := true
	for i := range s.inner {
		if !m.planForward(p, &s.inner[i], tasks) {
			finished = false
			if s.node.Kind == Seq {
				break
			}
		}
	}
	return finished
}

func (p *Progress) planStepForward(id int, tasks *[]Task) bool {
	s := &p.Steps[id-1]
	switch {
	case s.Resend:
		*tasks = append(*tasks, Task{id, Resend})
	case s.State == Idle, s.State == Waiting && s.Due == 0:
		*tasks = append(*tasks, Task{id, Do})
	}
	return s.State == Done || s.State == Skipped
}

// planBackward adds the steps of s that can be undone to tasks, and reports whether nothing of s is left to undo.
func (m *Machine) planBackward(p *Progress, s *span, tasks *[]Task) bool {
	if s.last <= p.Back {
		return true
	}
	if s.inner == nil {
		return m.planStepBackward(p, s.first, tasks)
	}
	finished := true
	for i := len(s.inner) - 1; i >= 0; i-- {
		inner := &s.inner[i]
		if !m.planBackward(p, inner, tasks) {
			finished = false
			if s.node.Kind == Seq {
				break
			}
		}
	}
	return finished
}

func (m *Machine) planStepBackward(p *Progress, id int, tasks *[]Task) bool {
	s := &p.Steps[id-1]
	if s.Resend {
		*tasks = append(*tasks, Task{id, Resend})
		return false
	}
	switch s.State {
	case Done, Unknown:
		if m.steps[id-1].Undo == "" || s.knownNotDone() {
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
		return m.steps[id-1].Undo == ""
	case Undoing, UndoStuck:
		return false
	default: // Idle, Skipped, Rejected, Undone
		return true
	}
}

// knownNotDone reports whether a person has skipped the step and its action is known to have done nothing.
func (s *Step) knownNotDone() bool { return s.State == Done && s.Override && !s.Doubt }
