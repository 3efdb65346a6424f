package faulttest

import (
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	all := Faults("effect")
	if want := len(failpoint.Points("effect")) * len(failpoint.Actions()); len(all) != want || want == 0 {
		t.Fatalf("%d faults, want each action at each point: %d", len(all), want)
	}
	seen := map[string]bool{}
	for _, f := range all {
		seen[f.String()] = true
	}
	if len(seen) != len(all) {
		t.Errorf("the names of %d faults are %d", len(all), len(seen))
	}
	done := failpoint.Point{Name: "a/after", Done: "it is done"}
	for _, tt := range []struct {
		fault      Fault
		name, spec string
	}{
		{Fault{Point: done, Action: "error"}, "a.after=do-then-error", "a/after=error:1"},
		{Fault{Point: failpoint.Point{Name: "a/before"}, Action: "error"}.At(3), "a.before=error 3", "a/before=error:3"},
		{Fault{Point: done, Action: "delay", Delay: time.Second}, "a.after=delay", "a/after=delay(1s):1"},
		{Fault{Point: done, Action: "kill", Delay: time.Second}, "a.after=kill", "a/after=kill:1"},
	} {
		if name, spec := tt.fault.String(), tt.fault.spec(); name != tt.name || spec != tt.spec {
			t.Errorf("%q arms with %q, want %q and %q", name, spec, tt.name, tt.spec)
		}
	}
}
