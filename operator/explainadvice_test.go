package operator

import (
	"testing"

	"github.com/sagamill/sagamill/saga"
)

func TestVerbsAreThoseThatAreNotRefused(t *testing.T) {
	t.Parallel()
	plan := &Timeline{Steps: []TimelineStep{
		{Name: "both"}, {Number: 1, State: StepStuck}, {Number: 2, State: StepUndoStuck},
		{Number: 3, State: StepStuck, Pivot: true}, {Number: 4, State: StepStuck},
	}}
	for i, want := range []string{1: "retry, skip or reject", "retry or skip", "retry, skip or reject", "retry or skip"} {
		if got := listVerbs(plan, &plan.Steps[i]); i > 0 && got != want {
			t.Errorf("step %d: %s, want %s", i, got, want)
		}
	}
}

// A line that is pasted into a shell names the instance alone.
func TestAVerbIsOneLineForAShell(t *testing.T) {
	t.Parallel()
	q := &inquiry{scope: "a c"}
	got := q.formatVerb(&SagaPart{Source: Source{Name: "trips", Flags: " -schema trips"}}, &Timeline{Instance: Instance{Address: saga.Address{Key: "-k", Path: "1.1"}}}, "retry", &TimelineStep{Name: "s"})
	if want := `sagamill saga retry -key=-k -schema trips -scope='a c' -path 1.1 -step s -why "…"`; got != want {
		t.Errorf("verb = %s, want %s", got, want)
	}
}
