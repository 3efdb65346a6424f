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

// countEnd counts a schedule in which nothing is left to happen.
func (x *search) countEnd(s *modelState) {
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
			x.sample = sample{append([]int{}, x.path...), s.reasonStuck()}
		}
	}
}

// reasonStuck returns the reason of the innermost saga that is stuck.
func (s *modelState) reasonStuck() (reason string) {
	for _, path := range s.host.sortedPaths() {
		row := s.host.rows[path]
		if statusOf(&row.Progress) == saga.StatusStuck {
			reason = row.flow.Machine.Why(&row.Progress)
		}
	}
	return reason
}

// summarize says what was looked at, for people.
func (x *search) summarize(took fmt.Stringer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "explored %d schedules with up to %d faults, %d states, %d events in %s%s",
		x.schedules, x.opts.Faults, x.states, x.events, took, x.describeUnfinished())
	fmt.Fprintf(&b, "\n%d completed, %d compensated, %d stuck", x.ends.completed, x.ends.compensated, x.ends.stuck)
	b.WriteString(x.exampleOfStuck())
	if unheard := x.unreachedRoutes(); len(unheard) > 0 {
		fmt.Fprintf(&b, "\nnothing was ever sent to %s", strings.Join(unheard, ", "))
	}
	if x.unjudged {
		b.WriteString("\nthe Model has no Rest and no Always: what its world comes to is not judged")
	}
	return b.String()
}

// exampleOfStuck gives an example of a schedule that ends stuck.
func (x *search) exampleOfStuck() string {
	if x.sample.path == nil {
		return ""
	}
	text := fmt.Sprintf(", e.g. sagatest.Replay(t, model, %q): %s", x.runSchedule(deviationsOf(x.sample.path)).scheduleText(), x.sample.reason)
	if strings.Contains(x.sample.reason, actionDead) {
		text += "; where a handler has no effect outside its transaction, CancelParked of its consumer.Step lets the compensation cancel the dead letter"
	}
	return text
}

// unreachedRoutes names what participants listen to and were never sent.
func (x *search) unreachedRoutes() (names []string) {
	for _, r := range x.inputs {
		if !r.reached {
			side := map[inbox.Kind]string{inbox.Action: "action", inbox.Compensation: "compensation"}[r.kind]
			names = append(names, fmt.Sprintf("the %s of %s, %s", side, r.name, r.input.Topic))
		}
	}
	slices.Sort(names)
	return names
}

// endedNowhere returns why nothing is shown by a search that has found nothing.
func (x *search) endedNowhere() string {
	switch {
	case x.ended:
		return ""
	case x.limitReached():
		return fmt.Sprintf("no schedule has come to an end within MaxStates, %d: nothing is shown", x.opts.MaxStates)
	}
	return "no schedule ends completed or compensated: nothing is shown"
}
