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

// A Target is a measured value with its goal.
type Target struct {
	Name   string
	Value  float64
	Goal   float64
	AtMost bool // the goal is an upper bound
	Hard   bool // an invariant of the product, on any machine
}

// TargetMet reports whether the goal is met.
func (t *Target) TargetMet() bool {
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
	if !t.TargetMet() {
		verdict = "short"
	}
	return fmt.Sprintf("target %s %s %s%g %s", t.Name, formatNumber(t.Value), sign, t.Goal, verdict)
}

// formatNumber shows whole numbers as such.
func formatNumber(v float64) string {
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d", int64(v))
	}
	return fmt.Sprintf("%.2f", v)
}

// atMostTarget is a goal of time or of another measure.
func atMostTarget(name string, value, goal float64) Target {
	return Target{Name: name, Value: value, Goal: goal, AtMost: true}
}

// zeroTarget is an invariant: there must be none of something.
func zeroTarget(name string, value int) Target {
	return Target{Name: name, Value: float64(value), AtMost: true, Hard: true}
}

// rowTargets returns the goals of one fault. The death of the one node with a classic queue has none: its
// messages are refused, and wait longer after each refusal.
func (row *Row) rowTargets() []Target {
	if row.Fault == fault.KillHost {
		return nil
	}
	name := row.Stage + "/" + row.Fault + "/"
	all := []Target{atMostTarget(name+"recovery-seconds", row.Recovery.Seconds(), maxRecovery.Seconds())}
	if row.OfIdle {
		all = append(all, atMostTarget(name+"stall-seconds", row.Stall.Seconds(), maxIdleStall.Seconds()))
	}
	if row.OfRed {
		all = append(all, Target{Name: name + "blue-percent", Value: row.BluePercent, Goal: minBluePercent},
			atMostTarget(name+"blue-delay-seconds", row.BlueDelay.Seconds(), maxBlueDelay.Seconds()))
	}
	return all
}

// totalTargets are the goals of a whole run: its invariants, and how far it came.
func (r *Report) totalTargets() []Target {
	var sum Outcome
	stuck, left := 0, 0
	for _, o := range r.Outcomes {
		sum.Written, sum.Completed, sum.Dead = sum.Written+o.Written, sum.Completed+o.Completed, sum.Dead+o.Dead
		sum.Findings.AddFindings(o.Findings)
		left += len(o.Left)
		if o.Stuck != "" {
			stuck++
		}
	}
	return []Target{
		zeroTarget("orders-not-completed", sum.Written-sum.Completed),
		zeroTarget("effects-lost", sum.Lost), zeroTarget("effects-doubled", sum.Doubled), zeroTarget("effects-without-cause", sum.Alien),
		zeroTarget("effects-disordered", sum.Disordered), zeroTarget("money-difference", int(sum.Money)),
		zeroTarget("dead-letters", sum.Dead), zeroTarget("stages-not-drained", left),
		{Name: "orders", Value: float64(sum.Written), Goal: float64(r.Options.Orders)},
		atMostTarget("stages-stuck", float64(stuck), 0),
	}
}

// AllTargets returns all goals of a run: those of the whole run and of each fault.
func (r *Report) AllTargets() []Target {
	all := r.totalTargets()
	for _, o := range r.Outcomes {
		for i := range o.Rows {
			all = append(all, o.Rows[i].rowTargets()...)
		}
	}
	return all
}

// InvariantsHold reports whether all invariants hold.
func (r *Report) InvariantsHold() bool { return r.targetsMet(true) }

// MeetsTargets reports whether all other goals are met.
func (r *Report) MeetsTargets() bool { return r.targetsMet(false) }

func (r *Report) targetsMet(hard bool) bool {
	for _, t := range r.AllTargets() {
		if t.Hard == hard && !t.TargetMet() {
			return false
		}
	}
	return true
}
