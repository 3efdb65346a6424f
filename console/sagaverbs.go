package console

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/operator"
)

// A verbLine is a verb with what it would do to the saga of the page.
type verbLine struct {
	decisionVerb
	Step    string
	Says    string
	Refusal string
	Denied  bool // the person's role is too low
	Fields  []hiddenField
	Result  bool // it takes a result
}

// Needs returns the role that the verb needs.
func (l *verbLine) Needs() Role { return l.needs }

type hiddenField struct{ Name, Value string }

// listVerbs returns the verbs about an instance as a whole, and those about its steps.
func listVerbs(s *sagaReading, choices []operator.Choice, role Role) (whole, steps []verbLine) {
	for _, choice := range choices {
		verb := decisionVerbs[choice.Verb]
		l := verbLine{decisionVerb: verb, Step: choice.Step, Says: verb.describe(choice.Step, true), Refusal: choice.Refusal, Denied: role < verb.needs, Result: choice.Verb == operator.VerbSkip}
		fields := []hiddenField{{"in", s.home.Name}, {"scope", s.timeline.Scope}, {"key", s.timeline.Key}, {"id", s.timeline.ID}}
		if choice.Verb == operator.VerbCancel && choice.Refusal == "" {
			l.Says = strings.TrimSpace(describeUndo(s.timeline, "") + " " + l.Says)
		}
		if choice.Verb == operator.VerbCompensateTo && choice.Refusal == "" {
			l.Says = describeUndo(s.timeline, choice.Step) + " " + l.Says
		}
		if choice.Step == "" {
			l.Fields = fields
			whole = append(whole, l)
			continue
		}
		l.Fields = append(fields, hiddenField{"to", choice.Step})
		steps = append(steps, l)
	}
	return whole, steps
}

// describeUndo says which steps would be compensated now: by a cancellation, or by going back to a step or group.
func describeUndo(t *operator.Timeline, to string) string {
	if t.PlanProblem != "" {
		return "It is not known which steps it would undo: " + t.PlanProblem + "."
	}
	var waves []string
	for _, wave := range t.Undo {
		if wave = slices.DeleteFunc(slices.Clone(wave), func(step string) bool { return to != "" && !isAfter(t, step, to) }); len(wave) > 0 {
			waves = append(waves, strings.Join(wave, " and "))
		}
	}
	switch {
	case len(waves) > 0:
		return "It would undo " + strings.Join(waves, ", then ") + "."
	case to != "":
		return "It would undo nothing: no step after " + to + " has something to undo."
	}
	return "It would undo nothing: " + cmp.Or(t.UndoNothing, "no step is done") + "."
}

// isAfter reports whether a step comes after another one, or after a group, in the plan.
func isAfter(t *operator.Timeline, step, other string) bool {
	index := func(name string) int {
		return slices.IndexFunc(t.Steps, func(s operator.TimelineStep) bool { return s.Name == name })
	}
	i, end := index(step), index(other)
	if end < 0 {
		return false
	}
	for depth := t.Steps[end].Depth; end+1 < len(t.Steps) && t.Steps[end+1].Depth > depth; {
		end++ // what is in the group
	}
	return i > end
}
