package sagatest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/sagatest"
)

// A till is the world of a saga that takes money by an Effect.
type till struct {
	Charged map[string]int // by key, at a provider that knows no idempotency
	Taken   int            // payments that are in the books
	Noted   int            // by a local step
	Sent    int            // letters
}

func (w *till) RollBack(before till) {
	before.Charged = w.Charged
	*w = before
}

// payment charges, and asks first what became of an earlier attempt, or not. Then a receipt
// is noted here, and a letter goes out.
func payment(verifies bool) sagatest.Model[till, trip] {
	return sagatest.Model[till, trip]{
		World: func() till { return till{Charged: map[string]int{}} },
		Saga: func(w *till) *saga.Definition[trip] {
			pay := book("pay")
			pay.Pivot, pay.Undo = true, saga.Action[trip]{}
			return saga.Must(saga.Define("sale", 1,
				saga.Step[trip]{Name: "note", Do: saga.Local(func(_ context.Context, _ pgx.Tx, turn saga.Turn, _ *trip) error {
					w.Noted++
					return nil
				}), Undo: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error {
					w.Noted--
					return nil
				})},
				pay,
				saga.Step[trip]{Name: "receipt", Retry: saga.Retry{Attempts: 3}, Do: saga.Local(func(_ context.Context, _ pgx.Tx, turn saga.Turn, _ *trip) error {
					w.Noted++
					turn.Emit(outbox.Message{Topic: "letters", Step: "letter", Payload: []byte(`{}`)})
					return nil
				})}))
		},
		Steps: func(w *till) []consumer.Step { return []consumer.Step{w.cashier(verifies), w.office()} },
		Rest: func(w *till, o sagatest.Outcome[trip]) error {
			switch {
			case w.Charged["key"] > 1:
				return errors.New("charged twice")
			case o.Status == saga.StatusCompleted && (w.Taken != 1 || w.Noted != 2 || w.Sent != 1 && o.Dead == 0):
				return errors.New("completed, and something is missing")
			case o.Status == saga.StatusCompensated && w.Noted != 0:
				return errors.New("compensated, and something is noted")
			}
			return nil
		},
	}
}

func (w *till) cashier(verifies bool) consumer.Step {
	call := func(_ context.Context, in consumer.Message[request], _ string) (booking, error) {
		w.Charged[in.Key]++
		return booking{"charged"}, nil
	}
	verify := func(_ context.Context, in consumer.Message[request], _ string) (booking, bool, error) {
		return booking{"found"}, w.Charged[in.Key] > 0, nil
	}
	if !verifies {
		verify = nil
	}
	record := func(_ context.Context, _ pgx.Tx, in consumer.Message[request], result booking, emit consumer.Emit) error {
		w.Taken++
		return saga.Done(emit, in.Delivery, result)
	}
	return saga.Participant(consumer.Step{Name: "pay", Action: consumer.Effect("pay.book", call, verify, record)})
}

// office takes part in no saga: it listens to what is emitted.
func (w *till) office() consumer.Step {
	return consumer.Step{Name: "letter", Action: consumer.On("letters", func(context.Context, pgx.Tx, consumer.Message[struct{}], consumer.Emit) error {
		w.Sent++
		return nil
	})}
}

func TestExploreEffectsAndLocalSteps(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	sagatest.Explore(t, payment(true), &sagatest.ExploreOptions{Faults: 3, Cancels: 1})
	check(t, sagatest.ExploreWith(t, payment(false), nil, ""), "charged twice", 7)
}

// What a step says of its attempts is kept to.
func TestExploreAttemptsAndCancellation(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	m := modelOf(three(time.Minute), desks(0)...)
	m.Steps = func(a *agency) (all []consumer.Step) {
		for _, d := range desks(0) {
			s := saga.Participant(d.step(a))
			s.MaxAttempts, s.CancelParked = 1, d.name == "hotel"
			all = append(all, s)
		}
		return all
	}
	sagatest.Explore(t, m, &sagatest.ExploreOptions{Faults: 2})
}

func TestExploreGivesUp(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	r := &recorder{ctx: t.Context()}
	sagatest.Explore(r, modelOf(three(0), desks(0)...), &sagatest.ExploreOptions{MaxStates: 10, Duplicates: -1, Crashes: -1, Errors: -1, Timers: -1})
	sagatest.Explore(r, modelOf(three(0), desks(0)...), &sagatest.ExploreOptions{MaxStates: 10})
	if got := r.log[1]; r.failed || !strings.Contains(got, "there are more than MaxStates, 10") || strings.Contains(r.log[0], "more than") {
		t.Errorf("it says %q", r.log)
	}
}

// An action that is delivered again, and finds a tombstone, may have been at work before: it is a
// dead letter. That takes a crash and a deadline, and no error.
func TestExploreReportsSuperseded(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	dead := 0
	m := modelOf(three(time.Minute), desks(0)...)
	m.Rest = func(_ *agency, o sagatest.Outcome[trip]) error {
		dead = max(dead, o.Dead)
		return nil
	}
	sagatest.Explore(t, m, &sagatest.ExploreOptions{Errors: -1})
	if dead != 1 {
		t.Errorf("there were up to %d dead letters, want 1", dead)
	}
}
