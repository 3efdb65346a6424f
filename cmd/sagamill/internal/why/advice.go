package why

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
)

// adviseStep returns the commands that could free a stuck step. where is the finding about the step's
// message.
func (q *inquiry) adviseStep(s *site, t *operator.Timeline, step *operator.TimelineStep, where Finding) string {
	skip := q.formatVerb(s, t, "skip", step)
	letters := q.findDeadLetters(s, step)
	switch {
	case len(letters) > 0:
		return formatRedrive(letters) + "; or, if it has been settled by other means, " + skip
	case where.What == "discarded":
		return "a retry would not be heard either: once it has been settled by other means, " + skip
	case where.What == unrecorded && isDeadLetter(step):
		return "its dead letter is in none of the schemas that were looked at: redrive it where it is, for a retry comes to nothing; or, if it has been settled by other means, " + skip
	case where.What == "parked", strings.HasPrefix(where.What, "reply-"):
		return "the saga goes on when that is through; or a person decides: sagamill saga " + listVerbs(t, step)
	}
	return "a person decides: sagamill saga " + listVerbs(t, step)
}

// isDeadLetter reports whether a step is stuck because its message became a dead letter of a
// participant.
func isDeadLetter(step *operator.TimelineStep) bool {
	return strings.HasPrefix(step.Reason, "dead letter, ")
}

// listVerbs returns the verbs that a stuck step accepts.
func listVerbs(t *operator.Timeline, step *operator.TimelineStep) string {
	pivot := slices.IndexFunc(t.Steps, func(s operator.TimelineStep) bool { return s.Pivot })
	if step.State == operator.StepUndoStuck || pivot >= 0 && step.Number > t.Steps[pivot].Number {
		return "retry or skip"
	}
	return "retry, skip or reject"
}

// formatVerb returns the command line of a verb about a step.
func (q *inquiry) formatVerb(s *site, t *operator.Timeline, verb string, step *operator.TimelineStep) string {
	key := cli.QuoteWord(t.Key)
	if strings.HasPrefix(key, "-") {
		key = "-key=" + key
	}
	line := "sagamill saga " + verb + " " + key + s.flags
	if q.scope != "" {
		line += " -scope=" + cli.QuoteWord(q.scope)
	}
	if t.Path != "" {
		line += " -path " + cli.QuoteWord(t.Path)
	}
	return line + " -step " + cli.QuoteWord(step.Name) + ` -why "…"`
}

// A heldLetter is a dead letter, with the site that it is in.
type heldLetter struct {
	*site
	*operator.DeadLetter
}

// findDeadLetters returns the dead letters of a step's action and its compensation, and of the reply
// that the step waits for. They must be redriven in this order.
func (q *inquiry) findDeadLetters(home *site, step *operator.TimelineStep) (all []heldLetter) {
	for _, s := range q.sites {
		for i := range s.in.Letters {
			l := &s.in.Letters[i]
			reply := s == home && isReply(l.N, step) && strings.HasPrefix(l.Step, "saga-")
			if l.State == operator.StateDead && (l.N == step.N || reply) {
				all = append(all, heldLetter{s, l})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b heldLetter) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return all
}

// formatRedrive returns the command lines that redrive letters, one for each schema.
func formatRedrive(letters []heldLetter) string {
	say := "once the cause is mended: "
	if letters[0].Reason == consumer.ReasonActionDead { // actions come first, so letters has no action
		say = "its action is no dead letter any more, so next: "
	}
	var sites []*site
	var lines []string
	for _, l := range letters {
		id := strconv.FormatInt(l.ID, 10)
		if i := slices.Index(sites, l.site); i >= 0 {
			lines[i] += "," + id
			continue
		}
		sites = append(sites, l.site)
		lines = append(lines, "sagamill dead redrive"+l.flags+" -id "+id)
	}
	return say + strings.Join(lines, " && ")
}

// explainObsolete returns the command that discards a dead letter which is of no use to its instance
// any more. If the letter may still be of use, ok is false.
func (q *inquiry) explainObsolete(s *site, l *operator.DeadLetter) (text string, ok bool) {
	_, n, err := flow.Unmark(l.N)
	if err != nil {
		return "", false
	}
	to, err := flow.ParseN(n)
	if err != nil {
		to, _, err = flow.ParseReplyN(n)
	}
	t := q.findTimeline(to.Path)
	if err != nil || t == nil || l.State != operator.StateDead {
		return "", false
	}
	discard := fmt.Sprintf("sagamill dead discard%s -id %d", s.flags, l.ID)
	if !t.EndedAt.IsZero() {
		return "the saga has ended, and a redrive could do work that nobody undoes: " + discard, true
	}
	for i := range t.Steps {
		if step := &t.Steps[i]; step.Number == to.Step && isObsolete(step, to.Attempt) {
			return fmt.Sprintf("the saga has no use for it any more, for step %s is %s: %s", cli.FormatCell(step.Name), step.State, discard), true
		}
	}
	return "", false
}

// isObsolete reports whether the saga ignores the outcome of an attempt at a step.
func isObsolete(step *operator.TimelineStep, attempt int) bool {
	switch step.State {
	case operator.StepDone, operator.StepRejected, operator.StepUndone:
		return true
	}
	return attempt < step.Attempt
}

// findTimeline returns the instance that is nested at a path.
func (q *inquiry) findTimeline(path string) *operator.Timeline {
	for _, s := range q.sites {
		for i := range s.sagas {
			if s.sagas[i].Path == path {
				return &s.sagas[i]
			}
		}
	}
	return nil
}
