package operator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/celltext"
)

// adviseStep returns the commands that could free a stuck or held step. where is the finding about the step's
// message.
func (q *inquiry) adviseStep(s *SagaPart, t *Timeline, step *TimelineStep, where Finding) string {
	skip := func() string { return q.formatVerb(s, t, "skip", step) }
	letters := q.findDeadLetters(s, step)
	switch {
	case len(letters) > 0 && letters[0].Reason == consumer.ReasonParked && !letters[0].InDoubt && acceptsReject(t, step):
		return q.formatRedrive(letters) + "; to reject it, " + q.formatVerb(s, t, "reject", step) + "; or, if it has been settled by other means, " + skip()
	case len(letters) > 0 && letters[0].Kind == "action" && step.State == StepUndoStuck:
		return q.formatRedrive(letters) + ", which does the step and then undoes it; or, if it has done nothing, or was undone by other means, " + skip()
	case len(letters) > 0:
		return q.formatRedrive(letters) + "; or, if it has been settled by other means, " + skip()
	case where.What == "discarded":
		return "a retry does not help, because the participant ignores it as a duplicate: once the step has been settled by other means, " + skip()
	case where.What == unrecorded && isUnread(step.Reason):
		return "the participant could not read its message: once it can, " + q.formatVerb(s, t, "retry", step) + ", and discard the dead letter"
	case where.What == unrecorded && isDeadLetter(step.Reason):
		return "its dead letter is in none of the schemas that were looked at: redrive it where it is; a retry does not help; or, if it has been settled by other means, " + skip()
	case where.What == "parked", strings.HasPrefix(where.What, "reply-"):
		return "the saga goes on when that is through; or a person decides: " + q.nameVerb("sagamill saga ", "") + listVerbs(t, step)
	}
	return "a person decides: " + q.nameVerb("sagamill saga ", "") + listVerbs(t, step)
}

// isDeadLetter reports whether a step is stuck or held because its message became a dead letter of a participant: reason is that of
// the step.
func isDeadLetter(reason string) bool {
	return strings.HasPrefix(reason, "dead letter, ")
}

// isUnread reports whether the participant could not read the message of a step that isDeadLetter. It has recorded nothing
// under the step then, so that a copy runs.
func isUnread(reason string) bool {
	what, is := strings.CutPrefix(reason, "dead letter, ")
	what, _, _ = strings.Cut(what, ":")
	return is && (what == string(consumer.ReasonUndecodable) || what == string(consumer.ReasonTooLarge))
}

// listVerbs returns the verbs that a stuck step accepts.
func listVerbs(t *Timeline, step *TimelineStep) string {
	if acceptsReject(t, step) {
		return "retry, skip or reject"
	}
	return "retry or skip"
}

// acceptsReject reports whether a step that is stuck or held can be rejected: its action, and not behind the pivot.
func acceptsReject(t *Timeline, step *TimelineStep) bool {
	pivot := slices.IndexFunc(t.Steps, func(s TimelineStep) bool { return s.Pivot })
	return step.State != StepUndoStuck && (pivot < 0 || step.Number <= t.Steps[pivot].Number)
}

// formatVerb returns the command line of a verb about a step, or its name.
func (q *inquiry) formatVerb(s *SagaPart, t *Timeline, verb string, step *TimelineStep) string {
	key := celltext.QuoteWord(t.Key)
	if strings.HasPrefix(key, "-") {
		key = "-key=" + key
	}
	line := "sagamill saga " + verb + " " + key + s.Flags
	if q.scope != "" {
		line += " -scope=" + celltext.QuoteWord(q.scope)
	}
	if t.Path != "" {
		line += " -path " + celltext.QuoteWord(t.Path)
	}
	line += " -step " + celltext.QuoteWord(step.Name) + ` -why "…"`
	return q.giveCommand(line, "a "+verb+" of step "+celltext.FormatCell(step.Name))
}

// A heldLetter is a dead letter, with the part that it is in.
type heldLetter struct {
	*SagaPart
	*DeadLetter
}

// findDeadLetters returns the dead letters of a step's action and its compensation, and of the reply
// that the step waits for. They must be redriven in this order.
func (q *inquiry) findDeadLetters(home *SagaPart, step *TimelineStep) (all []heldLetter) {
	for _, s := range q.parts {
		for i := range s.Inbox.Letters {
			l := &s.Inbox.Letters[i]
			reply := s == home && isReply(l.N, step) && strings.HasPrefix(l.Step, "saga-")
			if l.State == StateDead && (l.N == step.N || reply) {
				all = append(all, heldLetter{s, l})
			}
		}
	}
	sortLetters(all)
	return all
}

// isChoreographed reports whether l is of a choreographed saga, and may run again. The n of a command has the address of its
// instance, which may be in another database, or gone: then nobody here knows whether its saga has ended.
func isChoreographed(l *DeadLetter) bool {
	_, _, err := parseSagaN(l.N)
	return err != nil && l.Reason != consumer.ReasonKeyReused
}

// findStepLetters returns the dead letters of the step of l, in the order in which they must be redriven.
func findStepLetters(s *SagaPart, l *DeadLetter) (all []heldLetter) {
	for i := range s.Inbox.Letters {
		if other := &s.Inbox.Letters[i]; other.State == StateDead && other.Step == l.Step && other.N == l.N {
			all = append(all, heldLetter{s, other})
		}
	}
	sortLetters(all)
	return all
}

// sortLetters orders the letters of a step as they must be redriven.
func sortLetters(all []heldLetter) {
	slices.SortStableFunc(all, func(a, b heldLetter) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
}

// formatRedrive returns the command lines that redrive letters, one for each schema, or what they do.
func (q *inquiry) formatRedrive(letters []heldLetter) string {
	say := "once the cause is fixed: "
	switch letters[0].Reason {
	case consumer.ReasonParked:
		say = "once it is approved: "
	case consumer.ReasonActionDead: // actions come first, so letters has no action
		say = "its action is no dead letter any more, so next: "
	}
	var parts []*SagaPart
	var lines, names []string
	for _, l := range letters {
		id := strconv.FormatInt(l.ID, 10)
		if i := slices.Index(parts, l.SagaPart); i >= 0 {
			lines[i] += "," + id
			names[i] += "," + id
			continue
		}
		parts = append(parts, l.SagaPart)
		lines = append(lines, "sagamill dead redrive"+l.Flags+" -id "+id)
		names = append(names, "a redrive of letter "+id+" of schema "+l.Name)
	}
	return say + q.giveCommand(strings.Join(lines, " && "), strings.Join(names, ", then "))
}

// explainObsolete returns the command that discards a dead letter which is of no use to its instance
// any more. If the letter may still be of use, ok is false.
func (q *inquiry) explainObsolete(s *SagaPart, l *DeadLetter) (text string, ok bool) {
	_, to, err := parseSagaN(l.N)
	t := q.findTimeline(to.Path)
	if err != nil || t == nil || l.State != StateDead {
		return "", false
	}
	discard := fmt.Sprintf("sagamill dead discard%s -id %d", s.Flags, l.ID)
	if !t.EndedAt.IsZero() {
		return "the saga has ended, and a redrive could do work that nobody undoes: " + q.giveCommand(discard, "discard it"), true
	}
	for i := range t.Steps {
		if step := &t.Steps[i]; step.Number == to.Step && isObsolete(step, to.Attempt) {
			return fmt.Sprintf("the saga has no use for it any more, for step %s is %s: %s", celltext.FormatCell(step.Name), step.State, q.giveCommand(discard, "discard it")), true
		}
	}
	return "", false
}

// isObsolete reports whether the saga ignores the outcome of an attempt at a step.
func isObsolete(step *TimelineStep, attempt int) bool {
	switch step.State {
	case StepDone, StepRejected, StepUndone:
		return true
	}
	return attempt < step.Attempt
}

// findTimeline returns the instance that is nested at a path.
func (q *inquiry) findTimeline(path string) *Timeline {
	for _, s := range q.parts {
		for i := range s.Sagas {
			if s.Sagas[i].Path == path {
				return &s.Sagas[i]
			}
		}
	}
	return nil
}
