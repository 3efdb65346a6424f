package sagatest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/saga"
)

// ends are those that the schedules of one round have come to.
type ends struct {
	completed, compensated, stuck int // and whatever else is no end
}

// A sample is the first schedule that was found to be without an end.
type sample struct {
	path   []int // nil: there is none
	reason string
}

// end counts a schedule in which nothing is left to happen.
func (x *search) end(s *modelState) {
	x.schedules++
	switch status := statusOf(&s.host.rows[""].Progress); status {
	case saga.StatusCompleted:
		x.ends.completed++
		x.ended = true
	case saga.StatusCompensated:
		x.ends.compensated++
		x.ended = true
	default:
		x.ends.stuck++
		if x.sample.path == nil {
			x.sample = sample{append([]int{}, x.path...), s.whyStuck()}
		}
	}
}

// whyStuck returns the reason of the innermost saga that is stuck.
func (s *modelState) whyStuck() (reason string) {
	for _, path := range s.host.paths() {
		row := s.host.rows[path]
		if statusOf(&row.Progress) == saga.StatusStuck {
			reason = row.flow.Machine.Why(&row.Progress)
		}
	}
	return reason
}

// summary says what was looked at, for people.
func (x *search) summary(took fmt.Stringer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "explored %d schedules with up to %d faults, %d states, %d events in %s%s",
		x.schedules, x.opts.Faults, x.states, x.events, took, x.unfinished())
	fmt.Fprintf(&b, "\n%d completed, %d compensated, %d stuck", x.ends.completed, x.ends.compensated, x.ends.stuck)
	b.WriteString(x.stuckAt())
	if unheard := x.unheard(); len(unheard) > 0 {
		fmt.Fprintf(&b, "\nnothing was ever sent to %s", strings.Join(unheard, ", "))
	}
	if x.unjudged {
		b.WriteString("\nthe Model has no Rest and no Always: what its world comes to is not judged")
	}
	return b.String()
}

// stuckAt gives an example of a schedule that ends stuck.
func (x *search) stuckAt() string {
	if x.sample.path == nil {
		return ""
	}
	text := fmt.Sprintf(", e.g. sagatest.Replay(t, model, %q): %s", x.attempt(deviate(x.sample.path)).schedule(), x.sample.reason)
	if strings.Contains(x.sample.reason, actionDead) {
		text += "; where a handler has no effect outside its transaction, CancelParked of its consumer.Step lets the compensation cancel the dead letter"
	}
	return text
}

// unheard names what participants listen to and were never sent.
func (x *search) unheard() (names []string) {
	for _, r := range x.inputs {
		if !r.reached {
			side := map[inbox.Kind]string{inbox.Action: "action", inbox.Compensation: "compensation"}[r.kind]
			names = append(names, fmt.Sprintf("the %s of %s, %s", side, r.name, r.input.Topic))
		}
	}
	slices.Sort(names)
	return names
}

// vacuous returns why nothing is shown by a search that has found nothing.
func (x *search) vacuous() string {
	switch {
	case x.ended:
		return ""
	case x.full():
		return fmt.Sprintf("no schedule has come to an end within MaxStates, %d: nothing is shown", x.opts.MaxStates)
	}
	return "no schedule ends completed or compensated: nothing is shown"
}
