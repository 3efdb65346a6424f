package operator

import (
	"slices"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/consumer"
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

// For a page, a sentence names the verbs, and the finding has the command lines beside it.
func TestSentencesForPagesHaveNoCommands(t *testing.T) {
	t.Parallel()
	s := &SagaPart{Source: Source{Name: "trips", Flags: " -schema trips"}}
	dead := DeadLetter{ID: 5, State: StateDead, Kind: "action", Step: "s", N: "1"}
	s.Inbox.Letters = []DeadLetter{dead}
	timeline := &Timeline{Instance: Instance{Address: saga.Address{Key: "k"}}, Steps: []TimelineStep{{Number: 1, Name: "s", State: StepStuck, Type: "t", N: "1", InDoubt: true}}}
	for _, buttons := range []bool{false, true} {
		q := &inquiry{parts: []*SagaPart{s}, options: ExplainOptions{Buttons: buttons}, told: map[any]bool{}}
		q.addFinding(q.findStuckStep(s, timeline, &timeline.Steps[0], "step s"))
		got := q.found[0]
		lines := []string{"sagamill dead show -schema trips -id 5", "sagamill saga skip k -schema trips -step s -why \"…\"", "sagamill dead redrive -schema trips -id 5"}
		for _, line := range lines {
			if strings.Contains(got.Text, line) == buttons || slices.Contains(got.Commands, line) != buttons {
				t.Errorf("with buttons: %t: %q, commands %q", buttons, got.Text, got.Commands)
			}
		}
		if buttons && (strings.Contains(got.Text, "sagamill") || !strings.Contains(got.Text, "a redrive of letter 5 of schema trips") || len(q.commands) > 0) {
			t.Errorf("the sentence is %q, commands left %q", got.Text, q.commands)
		}
	}
}

// The advice about a dead letter depends on who made it one, and names what a redrive costs.
func TestAdviceAboutADeadLetter(t *testing.T) {
	t.Parallel()
	const redrive, skip, reject = "sagamill dead redrive -schema trips -id 5", `sagamill saga skip k -schema trips -step s -why "…"`, `sagamill saga reject k -schema trips -step s -why "…"`
	for name, tt := range map[string]struct {
		reason consumer.Reason
		state  StepState
		pivot  bool // the step comes after it
		doubt  bool
		want   string
	}{
		"held":               {consumer.ReasonTerminal, StepRunning, false, false, "once the cause is fixed: " + redrive + "; or, if it has been settled by other means, " + skip},
		"parked":             {consumer.ReasonParked, StepRunning, false, false, "once it is approved: " + redrive + "; to reject it, " + reject + "; or, if it has been settled by other means, " + skip},
		"parked, in doubt":   {consumer.ReasonParked, StepRunning, false, true, "once it is approved: " + redrive + "; or, if it has been settled by other means, " + skip},
		"behind the pivot":   {consumer.ReasonParked, StepRunning, true, false, "once it is approved: " + redrive + "; or, if it has been settled by other means, " + skip},
		"its saga is undone": {consumer.ReasonTerminal, StepUndoStuck, false, false, "once the cause is fixed: " + redrive + ", which does the step and then undoes it; or, if it has done nothing, or was undone by other means, " + skip},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &SagaPart{Source: Source{Name: "trips", Flags: " -schema trips"}}
			s.Inbox.Letters = []DeadLetter{{ID: 5, State: StateDead, Kind: "action", Step: "s", N: "1", Reason: tt.reason, InDoubt: tt.doubt}}
			step := TimelineStep{Number: 2, Name: "s", State: tt.state, Held: tt.state == StepRunning, Type: "t", N: "1"}
			timeline := &Timeline{Instance: Instance{Address: saga.Address{Key: "k"}}, Steps: []TimelineStep{{Number: 1, Name: "first", Pivot: tt.pivot}, step}}
			q := &inquiry{parts: []*SagaPart{s}, told: map[any]bool{}}
			if got := q.adviseStep(s, timeline, &step, Finding{What: "dead-letter"}); got != tt.want {
				t.Errorf("advice %q, want %q", got, tt.want)
			}
		})
	}
}

// A participant that could not read a message has recorded nothing of it: a copy runs. It ignores a copy of any other dead
// letter.
func TestADeadLetterIsRedrivenUnlessItWasNotRead(t *testing.T) {
	t.Parallel()
	s := &SagaPart{Source: Source{Name: "trips", Flags: " -schema trips"}}
	timeline := &Timeline{Instance: Instance{Address: saga.Address{Key: "k"}}}
	for reason, want := range map[string]string{
		"dead letter, terminal: no such table":         "redrive it where it is; a retry does not help",
		"dead letter, attempts-exhausted: undecodable": "redrive it where it is; a retry does not help",
		"dead letter, undecodable: payload: EOF":       `once it can, sagamill saga retry k -schema trips -step s -why "…", and discard the dead letter`,
		"dead letter, too-large: 9 MB":                 "once it can, sagamill saga retry k",
		"no reply within 5s":                           "a person decides",
	} {
		q := &inquiry{parts: []*SagaPart{s}, told: map[any]bool{}}
		if got := q.adviseStep(s, timeline, &TimelineStep{Number: 1, Name: "s", State: StepStuck, InDoubt: true, Reason: reason}, Finding{What: unrecorded}); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}
