package main

import (
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/saga"
)

// An inquiry finds out what a saga waits for.
type inquiry struct {
	scope      string // as it was asked for
	sites      []*site
	found      []finding
	unreadable []finding
	told       map[any]bool // messages, parked messages and rows that a finding is about, as pointers
}

// investigate begins with the instances, and goes on with what they have not accounted for.
func (q *inquiry) investigate() {
	q.told = map[any]bool{}
	for _, s := range q.sites {
		for i := range s.sagas {
			q.instance(s, &s.sagas[i])
		}
	}
	for _, s := range q.sites {
		q.rest(s)
	}
	for _, s := range q.sites {
		q.rows(s)
	}
}

// orchestrated reports whether there is an instance.
func (q *inquiry) orchestrated() bool {
	for _, s := range q.sites {
		if len(s.sagas) > 0 {
			return true
		}
	}
	return false
}

// instance tells what an instance waits for.
func (q *inquiry) instance(s *site, t *saga.Timeline) {
	tell := func(f finding) {
		f.Schema, f.Saga, f.Path = s.name, t.Saga, t.Path
		q.found = append(q.found, f)
	}
	tell(finding{What: "instance", Start: moment(t.StartedAt), Moved: moment(t.UpdatedAt), Text: instanceText(s, t)})
	if !t.EndedAt.IsZero() {
		return
	}
	if t.PlanProblem != "" {
		tell(finding{What: "plan", Text: t.PlanProblem})
	}
	q.standing(s, t, tell)
	for i := range t.Steps {
		if f, ok := q.step(s, t, &t.Steps[i]); ok {
			tell(f)
		}
	}
	if !t.Deadline.IsZero() && !t.Paused {
		tell(finding{What: "deadline", Until: moment(t.Deadline), Text: "the deadline of the saga passes at " + stamp(t.Deadline) + ": then it compensates"})
	}
}

// instanceText says what an instance is, and since when it is there. Since when it has its status
// is not known: it moves while it stays what it is.
func instanceText(s *site, t *saga.Timeline) string {
	moved := "last moved at " + stamp(t.UpdatedAt)
	if !t.EndedAt.IsZero() {
		moved = "ended at " + stamp(t.EndedAt)
	}
	text := fmt.Sprintf("saga %s, version %d, %s in schema %s: %s, started at %s, %s",
		cell(t.Saga), t.Version, address(t.Address), s.name, statusText(t), stamp(t.StartedAt), moved)
	if t.Reason != "" {
		text += ": " + t.Reason
	}
	return text
}

// standing tells what keeps the instance as a whole.
func (q *inquiry) standing(s *site, t *saga.Timeline, tell func(finding)) {
	at := address(t.Address)
	if t.Paused {
		f := finding{What: "paused", Text: "paused when it had gone back; sagamill saga resume goes on"}
		for i := len(t.Journal) - 1; i >= 0; i-- {
			if e := t.Journal[i]; e.Verb == saga.VerbPause {
				f.Since = moment(e.At)
				f.Text = fmt.Sprintf("paused by %s at %s because: %s; sagamill saga resume goes on", cell(e.By), stamp(e.At), e.Why)
			}
			if v := t.Journal[i].Verb; v == saga.VerbPause || v == saga.VerbCompensateTo {
				break
			}
		}
		tell(f)
	}
	switch {
	case t.Fault != "" && t.DueAt.IsZero():
		tell(finding{What: "fault", Text: "stuck: orchestrators have given it up: " + t.Fault + "; sagamill saga retry has them try again"})
	case t.Fault != "":
		tell(finding{What: "fault", Until: moment(t.DueAt), Text: "an orchestrator could not go on, and tries again at " + stamp(t.DueAt) + ": " + t.Fault})
	case len(t.Next) > 0:
		tell(finding{What: "orchestrator", Since: moment(t.DueAt), Text: fmt.Sprintf("an orchestrator of %s is to %s, since %s", at, strings.Join(t.Next, ", "), stamp(t.DueAt))})
	case !t.DueAt.IsZero() && t.At.Sub(t.DueAt).Seconds() > 1:
		tell(finding{What: "orchestrator", Since: moment(t.DueAt), Text: fmt.Sprintf("an orchestrator of schema %s is to look at it, since %s: does one run that knows version %d?", s.name, stamp(t.DueAt), t.Version)})
	}
}

// step tells what a step waits for.
func (q *inquiry) step(s *site, t *saga.Timeline, step *saga.TimelineStep) (f finding, ok bool) {
	name := "step " + cell(step.Name)
	switch step.State {
	case saga.StepWaiting, saga.StepUndoWaiting:
		if step.Due.IsZero() {
			return f, false // an orchestrator does it now
		}
		what := "attempt " + fmt.Sprint(step.Attempt)
		if step.State == saga.StepUndoWaiting {
			what = "its compensation"
		}
		f = finding{What: "again", Until: moment(step.Due), Text: fmt.Sprintf("%s: %s failed: %s; again at %s", name, what, step.Reason, stamp(step.Due))}
	case saga.StepStuck, saga.StepUndoStuck:
		f = q.stuck(s, t, step, name)
	case saga.StepRunning, saga.StepUndoing:
		f = q.awaited(s, t, step, name)
		if !step.Due.IsZero() && t.Paused {
			f.Text += "; its deadline, " + stamp(step.Due) + ", does not pass while the saga is paused"
		} else if !step.Due.IsZero() {
			f.Until = moment(step.Due)
			f.Text += "; its deadline passes at " + stamp(step.Due)
		}
	default:
		return f, false
	}
	f.Step, f.N = step.Name, step.N
	return f, true
}

// stuck tells why a step is, and what could free it.
func (q *inquiry) stuck(s *site, t *saga.Timeline, step *saga.TimelineStep, name string) finding {
	what := "stuck: " + name
	if step.State == saga.StepUndoStuck {
		what = "stuck: the compensation of " + name
	}
	f := finding{What: "stuck", Since: moment(step.Sent), Text: what + ": " + step.Reason}
	if step.Doubt {
		f.Text += "; what it has done is not known"
	}
	var where finding
	if (step.Doubt || step.State == saga.StepUndoStuck) && (step.Type != "" || t.PlanProblem != "") { // a local step has no message
		where = q.trace(s, t, step)
		if where.What != unrecorded || !failed(step) { // it was recorded somewhere
			f.ID = where.ID
			f.Text += "; " + where.Text
		}
	}
	f.Text += "; " + q.advise(s, t, step, where)
	return f
}

// awaited tells where the command of a step, or its reply, is.
func (q *inquiry) awaited(s *site, t *saga.Timeline, step *saga.TimelineStep, name string) finding {
	if n := step.Nested; n != nil && n.EndedAt.IsZero() && step.State == saga.StepRunning {
		return finding{What: "nested", Text: fmt.Sprintf("%s: runs the saga %s, nested at %s", name, cell(n.Saga), n.Path)}
	}
	f := q.trace(s, t, step)
	if step.State == saga.StepUndoing {
		name = "compensation of " + name
	}
	f.Text = name + ": " + f.Text
	if step.Again {
		f.Text += "; it is sent again"
	}
	return f
}

// isReply reports whether n is that of a reply to the last message of a step.
func isReply(n string, step *saga.TimelineStep) bool {
	mark := flow.ReplyN(step.N, undoes(step), "")
	return strings.HasPrefix(n, mark)
}

// undoes reports whether the last message of a step was its compensation.
func undoes(step *saga.TimelineStep) bool {
	return step.State == saga.StepUndoing || step.State == saga.StepUndoStuck || step.State == saga.StepUndoWaiting
}
