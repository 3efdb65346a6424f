package consumer

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// A compensation cancels an action that is known not to have happened: nothing is called, and no operator is needed.
func TestACompensationCancelsWhatWasNotDone(t *testing.T) {
	t.Parallel()
	const void, waits, refuses = "void", "waits", "refuses"
	for name, tt := range map[string]struct {
		refuse   []string // by the provider
		verify   bool
		replayed bool
		askFirst bool
		want     string
	}{
		"not done":                      {refuse: []string{"not done"}, want: void},
		"not done, for good":            {refuse: []string{"never, not done"}, want: void},
		"parked, and not done":          {refuse: []string{"a person decides, not done"}, want: void},
		"in doubt":                      {refuse: []string{"error"}, want: waits},
		"in doubt, for good":            {refuse: []string{"never"}, want: refuses},
		"in doubt, then not done":       {refuse: []string{"error", "not done"}, want: waits},
		"verify has ended the doubt":    {refuse: []string{"error", "not done"}, verify: true, want: waits},
		"parked, and in doubt":          {refuse: []string{"a person decides"}, want: refuses},
		"replayed":                      {refuse: []string{"not done"}, replayed: true, want: waits},
		"a restore may have forgotten":  {refuse: []string{"not done"}, verify: true, askFirst: true, want: waits},
		"not done, then in doubt again": {refuse: []string{"not done", "error"}, want: waits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, true)
			p.refuse = tt.refuse
			step := f.effectStep(p.url, tt.verify)
			step.AskFirst = tt.askFirst
			answered := 0
			step.Unhandled = func(u Unhandled, _ Emit) {
				if u.Undo && !u.Dead {
					answered++
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
			before := f.row(t)
			handle(t, c, undo("k"))
			want := map[string]stored{
				void:    {Row: "void" + before[len("retrying"):]},
				waits:   {Row: before},
				refuses: {Row: before},
			}[tt.want]
			if tt.want == void && before[:4] == "dead" {
				want.Row = "void" + before[len("dead"):]
			}
			got := stored{Row: f.row(t)}
			compareStored(t, want, got)
			if parked := f.doubts(t); (parked == "") != (tt.want == void) {
				t.Errorf("parked: %s", parked)
			}
			if (answered == 1) != (tt.want == void) {
				t.Errorf("%d answers to the compensation", answered)
			}
			if made := p.made(); made != " / 0" {
				t.Errorf("the provider made %q", made)
			}
			if tt.want == void {
				handle(t, c, act("k"), undo("k"))
				f.finishParked(t, c)
				compareStored(t, want, stored{Row: f.row(t), Parked: f.doubts(t)})
			}
		})
	}
}

// ofSaga returns msg as the one with the number n of its saga.
func ofSaga(msg *message.Message, n string) *message.Message {
	msg.Metadata.Set(outbox.HeaderKey, "k:process-payment#"+n)
	return msg
}

// A handler that was never entered has done nothing, and neither has one that waits behind another message of its key.
func TestACompensationCancelsWhatWasNeverEntered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no") }, f.effect("refunded"))
	step.Ordered = true
	c := f.consumer(t, Options{}, step)
	handle(t, c, ofSaga(act("k"), "1"), ofSaga(act("k"), "2"))
	if got, want := f.parked(t), "retrying action failed 1; retrying action waits-for-order 0"; got != want {
		t.Fatalf("parked %q, want %q", got, want)
	}
	handle(t, c, ofSaga(undo("k"), "2"))
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

// What an Effect knew does not hold for the handler that takes its place.
func TestACompensationOfWhatIsNoEffectAnyMoreWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	p.refuse = []string{"not done"}
	handle(t, f.consumer(t, Options{}, f.effectStep(p.url, false)), act("k"))
	plain := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no answer") }, f.effect("refunded"))
	plain.Single = true
	c := f.consumer(t, Options{}, plain)
	f.pass(t)
	runParkedOnce(t, c)
	handle(t, c, undo("k"))
	compareStored(t, stored{Row: "retrying 2 0", Parked: "retrying failed 2; retrying waits-for-action 0"}, stored{Row: f.row(t), Parked: f.doubts(t)})
}

// A redelivered message may have died in a handler that was no Effect.
func TestACompensationOfARedeliveredActionWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	p.refuse = []string{"not done"}
	c := f.consumer(t, Options{}, f.effectStep(p.url, false))
	again := act("k")
	again.Metadata.Set(outbox.PropertyRedelivered, "true")
	handle(t, c, again, undo("k"))
	compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying failed 1; retrying waits-for-action 0"}, stored{Row: f.row(t), Parked: f.doubts(t)})
}

// The failed entries of a step that was no Effect then may have had an effect that no call knows of.
func TestACompensationOfWhatWasNoEffectWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	p.refuse = []string{"not done"}
	plain := f.consumer(t, Options{}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no") }, nil))
	handle(t, plain, act("k"))
	c := f.consumer(t, Options{}, f.effectStep(p.url, false))
	f.pass(t)
	runParkedOnce(t, c)
	handle(t, c, undo("k"))
	compareStored(t, stored{Row: "retrying 2 0", Parked: "retrying failed 2; retrying waits-for-action 0"}, stored{Row: f.row(t), Parked: f.doubts(t)})
}
