package cluster

import (
	"fmt"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/cluster/fault"
)

// The goals of a fault.
const (
	maxRecovery    = 10 * time.Second
	maxIdleStall   = 2 * time.Second // where the node leads no queue
	maxBlueDelay   = time.Second     // during a fault of red alone
	minBluePercent = 90
)

// A Target is a goal and what the run has come to.
type Target struct {
	Name   string
	Value  float64
	Goal   float64
	AtMost bool // the goal is an upper bound
	Hard   bool // an invariant of the product, whatever the machine
}

// Met reports whether the goal is.
func (t *Target) Met() bool {
	if t.AtMost {
		return t.Value <= t.Goal
	}
	return t.Value >= t.Goal
}

// String returns the line: target NAME VALUE GOAL ok|short.
func (t *Target) String() string {
	sign, verdict := ">=", "ok"
	if t.AtMost {
		sign = "<="
	}
	if !t.Met() {
		verdict = "short"
	}
	return fmt.Sprintf("target %s %s %s%g %s", t.Name, number(t.Value), sign, t.Goal, verdict)
}

// number shows whole numbers as such.
func number(v float64) string {
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d", int64(v))
	}
	return fmt.Sprintf("%.2f", v)
}

// atMost is a goal of time or of another measure.
func atMost(name string, value, goal float64) Target {
	return Target{Name: name, Value: value, Goal: goal, AtMost: true}
}

// none is an invariant: there must be none of something.
func none(name string, value int) Target {
	return Target{Name: name, Value: float64(value), AtMost: true, Hard: true}
}

// targets are the goals of one fault. The death of the one node with a classic queue has
// none: its messages are refused, and wait longer after each refusal.
func (row *Row) targets() []Target {
	if row.Fault == fault.KillHost {
		return nil
	}
	name := row.Stage + "/" + row.Fault + "/"
	all := []Target{atMost(name+"recovery-seconds", row.Recovery.Seconds(), maxRecovery.Seconds())}
	if row.OfIdle {
		all = append(all, atMost(name+"stall-seconds", row.Stall.Seconds(), maxIdleStall.Seconds()))
	}
	if row.OfRed {
		all = append(all, Target{Name: name + "blue-percent", Value: row.BluePercent, Goal: minBluePercent},
			atMost(name+"blue-delay-seconds", row.BlueDelay.Seconds(), maxBlueDelay.Seconds()))
	}
	return all
}

// totals are the goals of a whole run: its invariants, and how far it came.
func (r *Report) totals() []Target {
	var sum Outcome
	stuck, left := 0, 0
	for _, o := range r.Outcomes {
		sum.Written, sum.Completed, sum.Dead = sum.Written+o.Written, sum.Completed+o.Completed, sum.Dead+o.Dead
		sum.Findings.Add(o.Findings)
		left += len(o.Left)
		if o.Stuck != "" {
			stuck++
		}
	}
	return []Target{
		none("orders-not-completed", sum.Written-sum.Completed),
		none("effects-lost", sum.Lost), none("effects-doubled", sum.Doubled), none("effects-without-cause", sum.Alien),
		none("effects-disordered", sum.Disordered), none("money-difference", int(sum.Money)),
		none("dead-letters", sum.Dead), none("stages-not-drained", left),
		{Name: "orders", Value: float64(sum.Written), Goal: float64(r.Options.Orders)},
		atMost("stages-stuck", float64(stuck), 0),
	}
}

// Targets are all goals of a run: those of the whole, and those of each fault.
func (r *Report) Targets() []Target {
	all := r.totals()
	for _, o := range r.Outcomes {
		for i := range o.Rows {
			all = append(all, o.Rows[i].targets()...)
		}
	}
	return all
}

// Holds reports whether all invariants do.
func (r *Report) Holds() bool { return r.met(true) }

// Meets reports whether all other goals are met.
func (r *Report) Meets() bool { return r.met(false) }

func (r *Report) met(hard bool) bool {
	for _, t := range r.Targets() {
		if t.Hard == hard && !t.Met() {
			return false
		}
	}
	return true
}
