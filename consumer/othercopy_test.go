package consumer

import (
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
)

// otherUndo is a compensation under the identity of undo, with another payload.
func otherUndo(key string) *message.Message { return newMessage("unpay", key, payment{777}) }

// redriven leaves a retrying action and its retrying compensation, of whose payload
// the row knows nothing: it became a dead letter because its action was one.
func (f *letterFixture) redriven(t *testing.T) {
	t.Helper()
	handle(t, f.c, act("k"), undo("k"))
	f.redriveID(t, 1, 2)
	if diff := cmp.Diff(stored{Row: "retrying 1 0", Parked: "retrying action terminal 0; retrying compensation action-dead 0"}, stored{Row: f.row(t), Parked: f.parked(t)}); diff != "" {
		t.Fatalf("stored, -want +got:\n%s", diff)
	}
}

// runAction runs the parked action, while its compensation is kept back.
func (f *letterFixture) runAction(t *testing.T, c *Consumer) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity' WHERE kind = 'compensation'")
	f.broken.Store(false)
	runParkedOnce(t, c)
	f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
}

// undoneOnce fails unless the retrying compensation has undone the action, and the other compensation is a dead
// letter.
func (f *letterFixture) undoneOnce(t *testing.T, parked string) {
	t.Helper()
	f.runAll(t)
	want := stored{Row: "compensated 1 1", Parked: parked, Effects: "paid k 1, refunded k 2"}
	compareStored(t, want, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
}

// A second compensation arrives before the retrying one, or the action, has run. It becomes a dead letter, and
// the row does not take it for the compensation of the action.
func TestACompensationBesideARetryingOneIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.redriven(t)
	f.working(t, otherUndo("k"))
	f.undoneOnce(t, "dead compensation key-reused 0")
}

// The action is done, so that the other compensation enters its handler, and fails.
func TestASecondCompensationThatFailsLeavesTheStepToTheRetryingOne(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.redriven(t)
	f.runAction(t, f.c)
	var entries atomic.Int32
	handle(t, f.consumer(t, Options{}, f.step(f.effect("paid"), f.failing(1, "refunded", &entries))), otherUndo("k"))
	compareStored(t, stored{Row: "done 1 0", Parked: "retrying compensation action-dead 0; dead compensation key-reused 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
	if n := entries.Load(); n != 1 {
		t.Errorf("the handler was entered %d times, want once", n)
	}
	f.undoneOnce(t, "dead compensation key-reused 1")
}

// The same where the compensation is a call to another system: it is not made.
func TestAnEffectBesideARetryingOneIsNotCalled(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	p := newProvider(t, true)
	f.redriven(t)
	calling := f.consumer(t, Options{}, f.effectStep(p.url, true))
	f.runAction(t, f.c)
	handle(t, calling, otherUndo("k"))
	compareStored(t, stored{Row: "done 1 0", Parked: "retrying compensation action-dead 0; dead compensation key-reused 0", Calls: " / 0"}, stored{Row: f.row(t), Parked: f.parked(t), Calls: p.made()})
	f.finishParked(t, calling)
	compareStored(t, stored{Row: "compensated 1 1", Parked: "dead compensation key-reused 0", Calls: "refund / 1"}, stored{Row: f.row(t), Parked: f.parked(t), Calls: p.made()})
}

// An unreadable message was given an identity and is retrying, without a row yet. Another message of that
// identity fails. The row that it claimed must not stay, because the row would say that the step is done.
func TestAnActionBesideARetryingOneLeavesNoRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries atomic.Int32
	c := f.consumer(t, Options{}, f.step(f.failing(2, "paid", &entries), nil))
	handle(t, c, act("k"))
	f.exec(t, "DELETE FROM {schema}.inbox")
	handle(t, c, newMessage("pay", "k", payment{777}))
	compareStored(t, stored{Parked: "retrying action failed 1; dead action key-reused 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "done 2 0", Effects: "paid k 1"}, stored{Row: f.row(t), Effects: f.effects(t)})
}
