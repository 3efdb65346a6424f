package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// advise says what could free a step that is stuck; where tells where its message is.
func (q *inquiry) advise(s *site, t *saga.Timeline, step *saga.TimelineStep, where finding) string {
	skip := q.verb(s, t, "skip", step)
	letters := q.letters(s, step)
	switch {
	case len(letters) > 0:
		return redrive(letters) + "; or, if it has been settled by other means, " + skip
	case where.What == "discarded":
		return "a retry would not be heard either: once it has been settled by other means, " + skip
	case where.What == unrecorded && failed(step):
		return "its dead letter is in none of the schemas that were looked at: redrive it where it is, for a retry comes to nothing; or, if it has been settled by other means, " + skip
	case where.What == "parked", strings.HasPrefix(where.What, "reply-"):
		return "the saga goes on when that is through; or a person decides: sagamill saga " + verbs(t, step)
	}
	return "a person decides: sagamill saga " + verbs(t, step)
}

// failed reports whether a step is stuck because a participant has its message as a dead letter.
func failed(step *saga.TimelineStep) bool { return strings.HasPrefix(step.Reason, "dead letter, ") }

// verbs are those that a step which is stuck is not refused.
func verbs(t *saga.Timeline, step *saga.TimelineStep) string {
	pivot := slices.IndexFunc(t.Steps, func(s saga.TimelineStep) bool { return s.Pivot })
	if step.State == saga.StepUndoStuck || pivot >= 0 && step.Number > t.Steps[pivot].Number {
		return "retry or skip"
	}
	return "retry, skip or reject"
}

// verb is the command line of a verb about a step.
func (q *inquiry) verb(s *site, t *saga.Timeline, verb string, step *saga.TimelineStep) string {
	key := shellWord(t.Key)
	if strings.HasPrefix(key, "-") {
		key = "-key=" + key
	}
	line := "sagamill saga " + verb + " " + key + " -schema " + s.name
	if q.scope != "" {
		line += " -scope=" + shellWord(q.scope)
	}
	if t.Path != "" {
		line += " -path " + shellWord(t.Path)
	}
	return line + " -step " + shellWord(step.Name) + ` -why "…"`
}

// shellWord makes s one word for a shell: a key comes from outside, and the line is
// there to be pasted.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.,:/@+", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// A heldLetter is a dead letter, with the schema that it is in.
type heldLetter struct {
	schema string
	*operator.DeadLetter
}

// letters are the dead letters of a step's action and its compensation, and of the reply that
// it waits for, in the order in which they are to be redriven.
func (q *inquiry) letters(home *site, step *saga.TimelineStep) (all []heldLetter) {
	for _, s := range q.sites {
		for i := range s.in.Letters {
			l := &s.in.Letters[i]
			reply := s == home && isReply(l.N, step) && strings.HasPrefix(l.Step, "saga-")
			if l.State == operator.StateDead && (l.N == step.N || reply) {
				all = append(all, heldLetter{s.name, l})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b heldLetter) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return all
}

// redrive says how letters are redriven, in a line for each schema.
func redrive(letters []heldLetter) string {
	say := "once the cause is mended: "
	if letters[0].Reason == consumer.ReasonActionDead { // actions come first: there is none
		say = "its action is no dead letter any more, so next: "
	}
	var schemas, lines []string
	for _, l := range letters {
		id := strconv.FormatInt(l.ID, 10)
		if i := slices.Index(schemas, l.schema); i >= 0 {
			lines[i] += "," + id
			continue
		}
		schemas = append(schemas, l.schema)
		lines = append(lines, "sagamill dead redrive -schema "+l.schema+" -id "+id)
	}
	return say + strings.Join(lines, " && ")
}

// over says what to do with a dead letter that an instance has no use for any more.
func (q *inquiry) over(s *site, l *operator.DeadLetter) (text string, ok bool) {
	_, n, err := flow.Unmark(l.N)
	if err != nil {
		return "", false
	}
	to, err := flow.ParseN(n)
	if err != nil {
		to, _, err = flow.ParseReplyN(n)
	}
	t := q.at(to.Path)
	if err != nil || t == nil || l.State != operator.StateDead {
		return "", false
	}
	discard := fmt.Sprintf("sagamill dead discard -schema %s -id %d", s.name, l.ID)
	if !t.EndedAt.IsZero() {
		return "the saga has ended, and a redrive could do work that nobody undoes: " + discard, true
	}
	for i := range t.Steps {
		if step := &t.Steps[i]; step.Number == to.Step && passed(step, to.Attempt) {
			return fmt.Sprintf("the saga has no use for it any more, for step %s is %s: %s", cell(step.Name), step.State, discard), true
		}
	}
	return "", false
}

// passed reports whether nothing that comes of an attempt at a step makes a difference.
func passed(step *saga.TimelineStep, attempt int) bool {
	switch step.State {
	case saga.StepDone, saga.StepRejected, saga.StepUndone:
		return true
	}
	return attempt < step.Attempt
}

// at returns the instance that is nested at a path.
func (q *inquiry) at(path string) *saga.Timeline {
	for _, s := range q.sites {
		for i := range s.sagas {
			if s.sagas[i].Path == path {
				return &s.sagas[i]
			}
		}
	}
	return nil
}
