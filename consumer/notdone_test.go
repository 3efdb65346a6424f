package consumer

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// A compensation cancels an action that is known not to have happened: nothing is called, and no operator is needed.
func TestACompensationCancelsWhatWasNotDone(t *testing.T) {
	t.Parallel()
	const waits = "; retrying waits-for-action 0"
	for name, tt := range map[string]struct {
		refuse           []string // by the provider
		verify, askFirst bool
		replayed         bool
		row, parked      string
	}{
		"not done":                     {refuse: []string{"not done"}, row: "void 1 0"},
		"not done, for good":           {refuse: []string{"never, not done"}, row: "void 1 0"},
		"parked, and not done":         {refuse: []string{"a person decides, not done"}, row: "void 0 0"},
		"parked, and in doubt":         {refuse: []string{"a person decides"}, row: "dead 0 0", parked: "dead parked 0?; dead action-dead 0"},
		"in doubt":                     {refuse: []string{"error"}, row: "retrying 1 0", parked: "retrying failed 1?" + waits},
		"in doubt, for good":           {refuse: []string{"never"}, row: "dead 1 0", parked: "dead terminal 1?; dead action-dead 0"},
		"in doubt, then not done":      {refuse: []string{"error", "not done"}, row: "retrying 2 0", parked: "retrying failed 2?" + waits},
		"not done, then in doubt":      {refuse: []string{"not done", "error"}, row: "retrying 2 0", parked: "retrying failed 2?" + waits},
		"verify has ended the doubt":   {refuse: []string{"error", "not done"}, verify: true, row: "retrying 2 0", parked: "retrying failed 2" + waits},
		"replayed":                     {refuse: []string{"not done"}, replayed: true, row: "retrying 1 0", parked: "retrying failed 1" + waits},
		"a restore may have forgotten": {refuse: []string{"not done"}, verify: true, askFirst: true, row: "retrying 1 0", parked: "retrying failed 1" + waits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, true)
			p.refuse = tt.refuse
			step := f.effectStep(p.url, tt.verify)
			step.AskFirst = tt.askFirst
			undone := 0
			step.Unhandled = func(u Unhandled, _ Emit) {
				if u.Undo && !u.Dead {
					undone++
				}
			}
			c := f.consumer(t, Options{}, step)
			action := act("k")
			if tt.replayed {
				action.Metadata.Set(outbox.HeaderReplayed, "yes")
			}
			handle(t, c, action)
			for range tt.refuse[1:] {
				f.pass(t)
				runParkedOnce(t, c)
			}
			handle(t, c, undo("k"))
			want := stored{Row: tt.row, Parked: tt.parked}
			compareStored(t, want, stored{Row: f.row(t), Parked: f.doubts(t)})
			if tt.parked == "" {
				handle(t, c, act("k"), undo("k"))
				f.finishParked(t, c)
				compareStored(t, want, stored{Row: f.row(t), Parked: f.doubts(t)})
			}
			if made := p.made(); made != " / 0" || (undone == 1) != (tt.parked == "") {
				t.Errorf("the provider made %q, and the compensation was answered %d times", made, undone)
			}
		})
	}
}

// refusing returns a step whose Effect is refused by its provider, which has done nothing.
func (f *fixture) refusing(t *testing.T) Step {
	p := newProvider(t, true)
	p.refuse = []string{"not done"}
	return f.effectStep(p.url, false)
}

// unanswered returns a step whose handler is no Effect, and gets no answer from its provider.
func (f *fixture) unanswered() Step {
	s := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no answer") }, f.effect("refunded"))
	s.Single = true
	return s
}

// A handler that was never entered has done nothing, and neither has one that waits behind another message of its key.
func TestACompensationCancelsWhatWasNeverEntered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no") }, f.effect("refunded"))
	step.Ordered = true
	c := f.consumer(t, Options{}, step)
	handle(t, c, numbered("k", "1"), numbered("k", "2"))
	if got, want := f.parked(t), "retrying action failed 1; retrying action waits-for-order 0"; got != want {
		t.Fatalf("parked %q, want %q", got, want)
	}
	second := undo("k")
	second.Metadata.Set(outbox.HeaderKey, "k:process-payment#2")
	handle(t, c, second)
	if got, want := f.parked(t), "retrying action failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

// A handler that asks for an operator was entered, although that costs no attempt.
func TestACompensationOfAParkedActionIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return Park(errors.New("ask ann")) }, f.effect("refunded")))
	handle(t, c, act("k"), undo("k"))
	compareStored(t, stored{Row: "dead 0 0", Parked: "dead action parked 0; dead compensation action-dead 0"}, stored{Row: f.row(t), Parked: f.parked(t)})
}

// A handler that is no Effect may have had an effect of which no call knows, before the step became an Effect, or after
// it was one.
func TestACompensationOfWhatWasNoEffectWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, steps := range map[string][2]Step{"it becomes one": {f.unanswered(), f.refusing(t)}, "it was one": {f.refusing(t), f.unanswered()}} {
		t.Run(name, func(t *testing.T) {
			f.exec(t, "TRUNCATE {schema}.inbox, {schema}.parked")
			handle(t, f.consumer(t, Options{}, steps[0]), act("k"))
			c := f.consumer(t, Options{}, steps[1])
			f.pass(t)
			runParkedOnce(t, c)
			handle(t, c, undo("k"))
			compareStored(t, stored{Row: "retrying 2 0", Parked: "retrying failed 2; retrying waits-for-action 0"}, stored{Row: f.row(t), Parked: f.doubts(t)})
		})
	}
}

// A redelivered message may have died in a handler that was no Effect.
func TestACompensationOfARedeliveredActionWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	again := act("k")
	again.Metadata.Set(outbox.PropertyRedelivered, "true")
	handle(t, f.consumer(t, Options{}, f.refusing(t)), again, undo("k"))
	compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying failed 1; retrying waits-for-action 0"}, stored{Row: f.row(t), Parked: f.doubts(t)})
}
