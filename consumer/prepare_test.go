package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

type preparedKey struct{}

// A batch is prepared once, for the messages whose handlers are going to be entered;
// their handlers find what was prepared. A message that is alone is not.
func TestABatchIsPreparedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var seen []string
	step := f.step(func(ctx context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		seen = append(seen, fmt.Sprint(in.Key, " ", ctx.Value(preparedKey{})))
		return nil
	}, nil)
	step.Prepare = NewPreparer(func(ctx context.Context, tx pgx.Tx, messages []*Delivery) (context.Context, error) {
		keys := ""
		for _, m := range messages {
			keys += m.Key
		}
		_, err := tx.Exec(ctx, "SELECT 1")
		return context.WithValue(ctx, preparedKey{}, keys), err
	})
	c := f.consumer(t, Options{BatchTime: time.Minute}, step)
	settle(t, c, act("d"))
	settle(t, c, act("d"), act("b"), act("c"), act("a"))
	if got, want := fmt.Sprint(seen), "[d <nil> a abc b abc c abc]"; got != want {
		t.Errorf("handlers saw %s, want %s", got, want)
	}
}

// What cannot be prepared is handled message by message.
func TestAPreparationThatFails(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"error":      func(context.Context, pgx.Tx) error { return errors.New("no") },
		"panic":      func(context.Context, pgx.Tx) error { panic("no") },
		"statement":  func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil },
		"commit":     func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"no context": nil,
		"unread":     func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Query(ctx, "SELECT 1"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var lines atomic.Int32
			step := f.step(f.numbers, nil)
			step.Prepare = NewPreparer(func(ctx context.Context, tx pgx.Tx, _ []*Delivery) (context.Context, error) {
				if prepare == nil {
					return nil, nil
				}
				return ctx, prepare(ctx, tx)
			})
			c := f.consumer(t, Options{Logger: slog.New(counting{&lines}), BatchTime: time.Minute}, step)
			if acked := settle(t, c, numbered("a", "1"), numbered("b", "1")); len(acked) != 2 {
				t.Errorf("acked %v, want both", acked)
			}
			if got, want := f.effects(t), "a1, b1"; got != want || f.parked(t) != "" || lines.Load() == 0 {
				t.Errorf("effects %q, parked %q, %d lines; want %q, nothing, and a word of it", got, f.parked(t), lines.Load(), want)
			}
		})
	}
}

// Steps with one Preparer are prepared together, others each for itself.
func TestStepsArePreparedTogether(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls []string
	preparer := func() *Preparer {
		return NewPreparer(func(ctx context.Context, _ pgx.Tx, messages []*Delivery) (context.Context, error) {
			call := ""
			for _, m := range messages {
				call += m.Key
			}
			calls = append(calls, call)
			return ctx, nil
		})
	}
	shared := preparer()
	step := f.step(f.numbers, nil)
	other, third := Step{Name: "another", Action: On("other", f.numbers)}, Step{Name: "third", Action: On("third", f.numbers)}
	step.Prepare, other.Prepare, third.Prepare = shared, shared, preparer()
	c := f.consumer(t, Options{BatchTime: time.Minute}, step, other, third)
	third3 := newMessage("third", "c", payment{1})
	third3.Metadata.Set(outbox.HeaderKey, "c:third")
	settle(t, c, numbered("a", "1"), newMessage("other", "b", payment{1}), third3)
	if got, want := fmt.Sprint(calls), "[ab c]"; got != want {
		t.Errorf("prepared %s, want %s", got, want)
	}
}
