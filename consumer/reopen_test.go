package consumer

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

// ending is a step whose action commits its transaction by itself for the key
// that it is given.
func (f *fixture) ending(key string) Step {
	paid := f.effect("paid")
	return f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if err := paid(ctx, tx, in, emit); err != nil || in.Key != key {
			return err
		}
		_, err := tx.Conn().Exec(ctx, "COMMIT")
		return err
	}, f.effect("refunded"))
}

// A handler has committed its work by itself, and before the failure is recorded
// the process dies, or the compensation comes: there is something to undo. The
// entry counts once, if it is recorded after all.
func TestACompensationWaitsForWhatAHandlerHasCommitted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.ending("k"))
	a, rejected := readAttempt(c, "pay", act("k"))
	if rejected != nil {
		t.Fatal(rejected)
	}
	if a.lose(c.executor.runTransaction(t.Context(), a)); !errors.Is(a.cause, errTxEnded) {
		t.Fatalf("runTransaction = %v, want errTxEnded", a.cause)
	}
	handle(t, c, undo("k"))
	compareStored(t, stored{Row: "open 1 0", Parked: "retrying compensation waits-for-action 0"}, stored{Row: f.row(t), Parked: f.parked(t)})
	if err := c.executor.executeAttempt(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	compareStored(t, stored{Row: "dead 1 0", Parked: "retrying compensation waits-for-action 0; dead action terminal 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
}

// The same in a batch. What was not entered when it ended has nothing to undo, and
// has all its attempts.
func TestCompensationsWaitForWhatABatchHasCommitted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.ending("k1"))
	b := &batch{x: c.executor}
	for _, msg := range keyed(3) {
		a, rejected := readAttempt(c, "pay", msg)
		if rejected != nil {
			t.Fatal(rejected)
		}
		b.attempts = append(b.attempts, a)
	}
	if err := b.runTransaction(t.Context(), t.Context()); !errors.Is(err, errTxEnded) {
		t.Fatalf("attempt = %v, want errTxEnded", err)
	}
	b.reopenUntilDone(t.Context(), t.Context())
	if got, want := f.rows(t), "k0 open 1, k1 open 1, k2 open 0"; got != want {
		t.Errorf("reopened %q, want %q", got, want)
	}
	handle(t, c, undo("k0"), undo("k1"), undo("k2"))
	if got, want := f.rows(t), "k0 open 1, k1 open 1, k2 void 0"; got != want {
		t.Errorf("after the compensations %q, want %q", got, want)
	}
	for _, a := range b.attempts[:2] {
		if err := c.executor.executeAttempt(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := f.rows(t), "k0 dead 1, k1 dead 1, k2 void 0"; got != want {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

// A handler has rolled its transaction back by itself, and another delivery of the
// message succeeds before the failure is recorded: the step is done, and stays so.
func TestAClaimThatAHandlerHasRolledBackIsNotTakenFromAnother(t *testing.T) {
	t.Parallel()
	for name, batched := range map[string]bool{"alone": false, "in a batch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			other := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
			c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
				if _, err := tx.Conn().Exec(ctx, "ROLLBACK"); err != nil {
					return err
				}
				handle(t, other, act("k"))
				return nil
			}, nil))
			a, rejected := readAttempt(c, "pay", act("k"))
			if rejected != nil {
				t.Fatal(rejected)
			}
			if batched {
				b := &batch{x: c.executor, attempts: []*attempt{a}}
				if err := b.runTransaction(t.Context(), t.Context()); !errors.Is(err, errTxEnded) {
					t.Fatalf("attempt = %v, want errTxEnded", err)
				}
				b.reopenUntilDone(t.Context(), t.Context())
			} else if a.lose(c.executor.runTransaction(t.Context(), a)); !errors.Is(a.cause, errTxEnded) {
				t.Fatalf("attempt = %v, want errTxEnded", a.cause)
			}
			if err := c.executor.executeAttempt(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			runParkedOnce(t, other)
			compareStored(t, stored{Row: "done 1 0", Effects: "paid k 1"}, stored{Row: f.row(t), Effects: f.effects(t)})
		})
	}
}
