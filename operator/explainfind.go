package operator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/celltext"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// An inquiry finds out what a saga waits for.
type inquiry struct {
	options    ExplainOptions
	scope      string // of the command line
	here       string // the databases that are looked at
	parts      []*SagaPart
	found      []Finding
	unreadable []Finding
	commands   []string     // of the next finding
	told       map[any]bool // messages, parked messages and rows that a finding is about, as pointers
}

// investigate collects the findings about instances, and then about messages and rows that these
// findings do not mention.
func (q *inquiry) investigate() {
	q.told = map[any]bool{}
	for _, s := range q.parts {
		for i := range s.Sagas {
			q.findInstance(s, &s.Sagas[i])
		}
	}
	for _, s := range q.parts {
		q.findOtherMessages(s)
	}
	for _, s := range q.parts {
		q.findRows(s)
	}
}

// nameVerb returns how a sentence names what a person does: as a command, or as a verb with a button.
func (q *inquiry) nameVerb(command, button string) string {
	if q.options.Buttons {
		return button
	}
	return command
}

// giveCommand is nameVerb for a whole command line, which the next finding keeps beside a button.
func (q *inquiry) giveCommand(command, button string) string {
	if line := strings.TrimPrefix(command, "; "); q.options.Buttons && !slices.Contains(q.commands, line) {
		q.commands = append(slices.Clone(q.commands), line)
	}
	return q.nameVerb(command, button)
}

// addFinding adds f, with the commands that were given for it.
func (q *inquiry) addFinding(f Finding) {
	f.Commands, q.commands = q.commands, nil
	q.found = append(q.found, f)
}

// isOrchestrated reports whether the saga has an instance.
func (q *inquiry) isOrchestrated() bool {
	for _, s := range q.parts {
		if len(s.Sagas) > 0 {
			return true
		}
	}
	return false
}

// findInstance collects the findings about an instance.
func (q *inquiry) findInstance(s *SagaPart, t *Timeline) {
	tell := func(f Finding) {
		f.Schema, f.Saga, f.Path = s.Name, t.Saga, t.Path
		q.addFinding(f)
	}
	tell(Finding{What: "instance", Start: celltext.FormatMoment(t.StartedAt), Moved: celltext.FormatMoment(t.UpdatedAt), Text: formatInstance(s, t)})
	if !t.EndedAt.IsZero() {
		return
	}
	if t.PlanProblem != "" {
		tell(Finding{What: "plan", Text: t.PlanProblem})
	}
	q.findInstanceHold(s, t, tell)
	for i := range t.Steps {
		if f, ok := q.findStep(s, t, &t.Steps[i]); ok {
			tell(f)
		}
	}
	if !t.Deadline.IsZero() && !t.Paused {
		tell(Finding{What: "deadline", Until: celltext.FormatMoment(t.Deadline), Text: "the deadline of the saga passes at " + celltext.FormatTime(t.Deadline) + ": then it compensates"})
	}
}

// formatInstance describes an instance and its status. It cannot say since when the instance has its
// status, because an instance also moves without a new status.
func formatInstance(s *SagaPart, t *Timeline) string {
	moved := "last moved at " + celltext.FormatTime(t.UpdatedAt)
	if !t.EndedAt.IsZero() {
		moved = "ended at " + celltext.FormatTime(t.EndedAt)
	}
	text := fmt.Sprintf("saga %s, version %d, %s in schema %s: %s, started at %s, %s",
		celltext.FormatCell(t.Saga), t.Version, celltext.FormatAddress(t.Scope, t.Key, t.Path), s.Name, t.StatusText(), celltext.FormatTime(t.StartedAt), moved)
	if t.Reason != "" {
		text += ": " + t.Reason
	}
	return text
}

// findInstanceHold tells what the instance as a whole waits for: a person or an orchestrator.
func (q *inquiry) findInstanceHold(s *SagaPart, t *Timeline, tell func(Finding)) {
	at := celltext.FormatAddress(t.Scope, t.Key, t.Path)
	resume := q.nameVerb("sagamill saga resume", "a resume")
	if t.Paused {
		f := Finding{What: "paused", Text: "paused when it had gone back; " + resume + " goes on"}
		for i := len(t.Journal) - 1; i >= 0; i-- {
			if e := t.Journal[i]; e.Verb == VerbPause {
				f.Since = celltext.FormatMoment(e.At)
				f.Text = fmt.Sprintf("paused by %s at %s because: %s; %s goes on", celltext.FormatCell(e.By), celltext.FormatTime(e.At), e.Why, resume)
			}
			if v := t.Journal[i].Verb; v == VerbPause || v == VerbCompensateTo {
				break
			}
		}
		tell(f)
	}
	switch {
	case t.Fault != "" && t.DueAt.IsZero():
		tell(Finding{What: "fault", Text: "stuck: orchestrators have given it up: " + t.Fault + "; " + q.nameVerb("sagamill saga retry", "a retry") + " has them try again"})
	case t.Fault != "":
		tell(Finding{What: "fault", Until: celltext.FormatMoment(t.DueAt), Text: "an orchestrator could not go on, and tries again at " + celltext.FormatTime(t.DueAt) + ": " + t.Fault})
	case len(t.Next) > 0:
		tell(Finding{What: "orchestrator", Since: celltext.FormatMoment(t.DueAt), Text: fmt.Sprintf("an orchestrator of %s is to %s, since %s", at, strings.Join(t.Next, ", "), celltext.FormatTime(t.DueAt))})
	case !t.DueAt.IsZero() && t.At.Sub(t.DueAt).Seconds() > 1:
		tell(Finding{What: "orchestrator", Since: celltext.FormatMoment(t.DueAt), Text: fmt.Sprintf("an orchestrator of schema %s is to look at it, since %s: does one run that knows version %d?", s.Name, celltext.FormatTime(t.DueAt), t.Version)})
	}
}

// findStep returns what a step waits for. If it waits for nothing, ok is false.
func (q *inquiry) findStep(s *SagaPart, t *Timeline, step *TimelineStep) (f Finding, ok bool) {
	name := "step " + celltext.FormatCell(step.Name)
	switch step.State {
	case StepWaiting, StepUndoWaiting:
		if step.Due.IsZero() {
			return f, false // findInstanceHold names the orchestrator
		}
		what := "attempt " + fmt.Sprint(step.Attempt)
		if step.State == StepUndoWaiting {
			what = "its compensation"
		}
		f = Finding{What: "again", Until: celltext.FormatMoment(step.Due), Text: fmt.Sprintf("%s: %s failed: %s; again at %s", name, what, step.Reason, celltext.FormatTime(step.Due))}
	case StepStuck, StepUndoStuck:
		f = q.findStuckStep(s, t, step, name)
	case StepRunning, StepUndoing:
		if step.Held {
			f = q.findStuckStep(s, t, step, name)
		} else {
			f = q.findAwaitedStep(s, t, step, name)
		}
		if !step.Due.IsZero() && t.Paused {
			f.Text += "; its deadline, " + celltext.FormatTime(step.Due) + ", does not pass while the saga is paused"
		} else if !step.Due.IsZero() {
			f.Until = celltext.FormatMoment(step.Due)
			f.Text += "; its deadline passes at " + celltext.FormatTime(step.Due)
		}
	default:
		return f, false
	}
	f.Step, f.N = step.Name, step.N
	return f, true
}

// findStuckStep returns why a step is stuck or held, and the commands that could free it.
func (q *inquiry) findStuckStep(s *SagaPart, t *Timeline, step *TimelineStep, name string) Finding {
	f := Finding{What: "stuck", Since: celltext.FormatMoment(step.Sent)}
	switch {
	case step.Held:
		f.What, f.Text = "held", "needs an operator: "+name+": "+step.Reason
	case step.State == StepUndoStuck:
		f.Text = "stuck: the compensation of " + name + ": " + step.Reason
	default:
		f.Text = "stuck: " + name + ": " + step.Reason
	}
	if step.InDoubt {
		f.Text += "; what it has done is not known"
	}
	var where Finding
	if (step.InDoubt || step.Held || step.State == StepUndoStuck) && (step.Type != "" || t.PlanProblem != "") { // a local step has no message
		before := q.commands
		where = q.traceStep(s, t, step)
		if where.What != unrecorded || !isDeadLetter(step.Reason) { // a schema here has recorded it
			f.ID = where.ID
			f.Text += "; " + where.Text
		} else {
			q.commands = before
		}
	}
	f.Text += "; " + q.adviseStep(s, t, step, where)
	return f
}

// findAwaitedStep returns where the command of a running step is, or its reply.
func (q *inquiry) findAwaitedStep(s *SagaPart, t *Timeline, step *TimelineStep, name string) Finding {
	if n := step.Nested; n != nil && n.EndedAt.IsZero() && step.State == StepRunning {
		return Finding{What: "nested", Text: fmt.Sprintf("%s: runs the saga %s, nested at %s", name, celltext.FormatCell(n.Saga), n.Path)}
	}
	f := q.traceStep(s, t, step)
	if step.State == StepUndoing {
		name = "compensation of " + name
	}
	f.Text = name + ": " + f.Text
	if f.What == "dead-letter" { // the saga was not told, as after a bury
		f.Text += "; " + q.formatRedrive(q.findDeadLetters(s, step))
	}
	if step.Resend {
		f.Text += "; it will be sent again"
	}
	return f
}

// isReply reports whether n is the number of a reply to the last message of a step.
func isReply(n string, step *TimelineStep) bool {
	mark := flow.ReplyN(step.N, isUndoing(step), "")
	return strings.HasPrefix(n, mark)
}

// parseSagaN parses the n of a command of an orchestrated saga, or of a reply: the mark of the saga, and the address of the
// step, with the path of its instance.
func parseSagaN(n string) (mark string, to flow.Address, err error) {
	incarnation, own := stepkey.SplitN(n)
	mark, n, err = flow.Unmark(own)
	if err != nil {
		return "", to, err
	}
	if to, err = flow.ParseN(n); err != nil {
		to, _, err = flow.ParseReplyN(n)
	}
	to.Path = flow.Within(incarnation, to.Path)
	return mark, to, err
}

// isUndoing reports whether the last message of a step was its compensation.
func isUndoing(step *TimelineStep) bool {
	return step.State == StepUndoing || step.State == StepUndoStuck || step.State == StepUndoWaiting
}
