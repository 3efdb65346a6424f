package machine_test

import (
	"fmt"
	"strings"

	"github.com/sagamill/sagamill/internal/machine"
)

// A view prints a progress for people: the phase, the steps that have begun, and
// what is next.
type view struct {
	m *machine.Machine
	p *machine.Progress
}

func (v view) String() string {
	var b strings.Builder
	b.WriteString(string(v.p.Phase))
	if v.p.Paused {
		b.WriteString(", paused")
	}
	if v.p.Back > 0 {
		fmt.Fprintf(&b, ", back to %s", v.m.Step(v.p.Back).Name)
	}
	if v.p.Reason != "" {
		fmt.Fprintf(&b, " (%s)", v.p.Reason)
	}
	b.WriteString("\n")
	for i := range v.p.Steps {
		if line := viewStep(&v.p.Steps[i]); line != "" {
			fmt.Fprintf(&b, "  %-8s %s\n", v.m.Step(i+1).Name, line)
		}
	}
	if end := v.p.End; end.Tries > 0 {
		fmt.Fprintf(&b, "  on-end failed %d times (%s)", end.Tries, end.Reason)
		if end.Stuck {
			b.WriteString(", stuck")
		}
		b.WriteString("\n")
	}
	return b.String() + "next: " + v.next() + "\n"
}

func (v view) next() string {
	var tasks []string
	for _, t := range v.m.Next(v.p) {
		if t.Kind == machine.OnEnd {
			tasks = append(tasks, "on-end")
			continue
		}
		tasks = append(tasks, fmt.Sprintf("%s %s", t.Kind, v.m.Step(t.ID).Name))
	}
	if due := v.m.Due(v.p); due > 0 {
		tasks = append(tasks, fmt.Sprintf("timer at %s", due.Duration()))
	}
	if len(tasks) == 0 {
		return "-"
	}
	return strings.Join(tasks, ", ")
}

func viewStep(s *machine.Step) string {
	if s.State == machine.Idle {
		return ""
	}
	line := fmt.Sprintf("%s #%d", s.State, s.Attempt)
	add := func(when bool, format string, args ...any) {
		if when {
			line += fmt.Sprintf(format, args...)
		}
	}
	add(s.Tries > 1, ", try %d", s.Tries)
	add(s.Due > 0, ", due %s", s.Due.Duration())
	add(s.Held, ", held")
	add(s.Doubt, ", in doubt")
	add(s.Override, ", by hand")
	add(s.Resend, ", to be sent again")
	add(len(s.Message) > 0, ", message %s", s.Message)
	add(len(s.Result) > 0, ", result %s", s.Result)
	add(s.Reason != "", " (%s)", s.Reason)
	return line
}
