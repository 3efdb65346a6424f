package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/cluster/fault"
)

// good is the report of a run in which everything holds and every goal is met.
func good() *Report {
	o := &Outcome{Stage: "ignore/plain", Written: 100, Completed: 100}
	for _, name := range []string{fault.KillLeader, fault.KillIdle, fault.RedNoMajority, fault.KillHost} {
		f := fault.FindFault(fault.AllFaults(time.Second), name)
		row := Row{Stage: o.Stage, Fault: f.Name, OfRed: f.StopsRedQueues(), OfIdle: f.HitsIdleNode()}
		row.Recovery, row.Stall, row.BluePercent, row.BlueDelay = maxRecovery, maxIdleStall, minBluePercent, maxBlueDelay
		o.Rows = append(o.Rows, row)
	}
	return &Report{Options: Options{Orders: 100}, Outcomes: []*Outcome{o}}
}

// TestVerdict plants violations that a run must not pass with. Each has the name of the missed target, and
// whether that is an invariant.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spoil func(o *Outcome)
		short string
		hard  bool
	}{
		{"nothing", func(*Outcome) {}, "", false},
		{"too few orders", func(o *Outcome) { o.Written, o.Completed = 99, 99 }, "orders", false},
		{"an order is not completed", func(o *Outcome) { o.Completed-- }, "orders-not-completed", true},
		{"an effect is lost", func(o *Outcome) { o.Lost++ }, "effects-lost", true},
		{"an effect is doubled", func(o *Outcome) { o.Doubled++ }, "effects-doubled", true},
		{"an effect has no cause", func(o *Outcome) { o.Alien++ }, "effects-without-cause", true},
		{"an effect is out of order", func(o *Outcome) { o.Disordered++ }, "effects-disordered", true},
		{"money is missing", func(o *Outcome) { o.Money++ }, "money-difference", true},
		{"a dead letter", func(o *Outcome) { o.Dead++ }, "dead-letters", true},
		{"a queue is not empty", func(o *Outcome) { o.Left = []string{"1 message"} }, "stages-not-drained", true},
		{"the services stay stuck", func(o *Outcome) { o.Stuck = "after kill-leader" }, "stages-stuck", false},
		{"a slow recovery", func(o *Outcome) { o.Rows[0].Recovery++ }, "ignore/plain/kill-leader/recovery-seconds", false},
		{"a stall without a leader's death", func(o *Outcome) { o.Rows[1].Stall++ }, "ignore/plain/kill-idle-node/stall-seconds", false},
		{"a stall with a leader's death", func(o *Outcome) { o.Rows[0].Stall++ }, "", false},
		{"a slow recovery of classic queues", func(o *Outcome) { o.Rows[3].Recovery++ }, "", false},
		{"blue is slower", func(o *Outcome) { o.Rows[2].BluePercent-- }, "ignore/plain/red-no-majority/blue-percent", false},
		{"blue is late", func(o *Outcome) { o.Rows[2].BlueDelay++ }, "ignore/plain/red-no-majority/blue-delay-seconds", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := good()
			tt.spoil(r.Outcomes[0])
			if holds, meets := tt.short == "" || !tt.hard, tt.short == "" || tt.hard; r.InvariantsHold() != holds || r.MeetsTargets() != meets {
				t.Errorf("holds %t, meets %t; want %t, %t", r.InvariantsHold(), r.MeetsTargets(), holds, meets)
			}
			var short []string
			for _, target := range r.AllTargets() {
				if !target.TargetMet() {
					short = append(short, target.Name)
				}
			}
			if want := strings.Fields(tt.short); !slices.Equal(short, want) {
				t.Errorf("short are %q, want %q", short, want)
			}
		})
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	r := good()
	r.Outcomes[0].Lost, r.Outcomes[0].Examples = 1, []string{"order 1-2 has 0 effects of step payment"}
	r.Outcomes[0].Rows[0].Stuck = true
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\ntarget orders 100 >=100 ok\n", "\ntarget effects-lost 1 <=0 short\n",
		"\ntarget ignore/plain/kill-idle-node/stall-seconds 2 <=2 ok\n",
		"\nviolated: ignore/plain: order 1-2 has 0 effects of step payment\n", " >10.0 ",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &b)
		}
	}
}
