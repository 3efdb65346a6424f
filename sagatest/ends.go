package sagatest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/saga"
)

// ends counts how the schedules of one round ended.
type ends struct {
	completed, compensated, stuck int // stuck includes held and paused
}

// A sample is the first schedule that ended stuck or held.
type sample struct {
	path   []int // nil: there is none
	reason string
}

// countEnd counts a schedule that has no event left.
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

// reasonStuck returns the reason of the innermost saga that is stuck or held.
func (s *modelState) reasonStuck() (reason string) {
	for _, path := range s.host.sortedPaths() {
		row := s.host.rows[path]
		if isHeldUp(&row.Progress) {
			reason = row.flow.Machine.Why(&row.Progress)
		}
	}
	return reason
}

// summarize describes what the search has covered, for people.
func (x *search) summarize(took fmt.Stringer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "explored %d schedules with up to %d faults, %d states, %d events in %s%s",
		x.schedules, x.opts.Faults, x.states, x.events, took, x.describeUnfinished())
	fmt.Fprintf(&b, "\n%d completed, %d compensated, %d stuck or held", x.ends.completed, x.ends.compensated, x.ends.stuck)
	b.WriteString(x.exampleOfStuck())
	if unheard := x.unreachedRoutes(); len(unheard) > 0 {
		fmt.Fprintf(&b, "\nnothing was ever sent to %s", strings.Join(unheard, ", "))
	}
	if x.unjudged {
		b.WriteString("\nthe Model has no Rest and no Always: what its world comes to is not judged")
	}
	return b.String()
}

// exampleOfStuck returns a schedule that ends stuck, for Replay.
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

// unreachedRoutes names the messages that participants take and that no schedule has sent.
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

// endedNowhere returns why a search without findings shows nothing; "" if it shows something.
func (x *search) endedNowhere() string {
	switch {
	case x.ended:
		return ""
	case x.limitReached():
		return fmt.Sprintf("no schedule has come to an end within MaxStates, %d: nothing is shown", x.opts.MaxStates)
	}
	return "no schedule ends completed or compensated: nothing is shown"
}
