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
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/sagatest"
)

// handledBy is three with a flight that is handled, and undone, so.
func handledBy(action, undo func(tx pgx.Tx) error) model {
	m := modelOf(three(time.Minute), desks(0)...)
	steps := m.Steps
	m.Steps = func(a *agency) []consumer.Step {
		all := steps(a)
		all[0] = saga.Participant(consumer.Step{
			Name: "flight",
			Action: saga.On("flight.book", func(_ context.Context, tx pgx.Tx, _ consumer.Message[request]) (booking, error) {
				return booking{}, action(tx)
			}),
			Compensation: saga.OnUndo("flight.cancel", func(_ context.Context, tx pgx.Tx, _ consumer.Message[request]) error { return undo(tx) }),
		})
		return all
	}
	m.Rest = nil
	return m
}

func nothing(pgx.Tx) error { return nil }

func execs(tx pgx.Tx) error {
	_, err := tx.Exec(context.Background(), "SELECT 1")
	return err
}

// locally is a saga of one local step that works so.
func locally(do func(tx pgx.Tx) error) model {
	return model{
		Saga: func(*agency) *saga.Definition[trip] {
			return saga.Must(saga.Define("trip", 1, saga.Step[trip]{
				Name: "note", Retry: saga.Retry{Attempts: 2},
				Do: saga.Local(func(_ context.Context, tx pgx.Tx, _ saga.Turn, _ *trip) error { return do(tx) }),
			}))
		},
		Steps: func(*agency) []consumer.Step { return nil },
	}
}

// What would make an exploration show nothing is a failure, or told.
func TestExploreIsNotVacuous(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	fails := func(pgx.Tx) error { return errors.New("no such table") }
	gives := func(pgx.Tx) error { return consumer.Terminal(errors.New("never")) }
	meant := handledBy(gives, gives)
	meant.DeadLetters = true
	mute := handledBy(nothing, nothing)
	mute.Steps = func(*agency) []consumer.Step { return []consumer.Step{{Name: "mute"}} }
	body, result := three(0), three(0)
	body[1].Do = saga.Remote("hotel.book", func(*trip) request { panic("no body") }, (*trip).booked)
	result[1].Do = saga.Remote("hotel.book", (*trip).request, func(*trip, booking) { panic("no result") })
	restless := modelOf(three(0), desks(0)...)
	restless.Rest = func(*agency, sagatest.Outcome[trip]) error { panic("no rest") }
	tests := []struct {
		name string
		m    model
		opts *sagatest.ExploreOptions
		want string
	}{
		{"action without tx", handledBy(execs, nothing), nil, "vacuous_test.go:40; Model.Tx is not set, so tx is nil"},
		{"compensation without tx", handledBy(nothing, execs), nil, "the handler of flight gives up on flight.cancel by itself"},
		{"a handler that fails", handledBy(fails, nothing), nil, "gives up on flight.book by itself, no error was injected: no such table"},
		{"a terminal error", handledBy(gives, nothing), nil, "set DeadLetters of the Model"},
		{"nothing but dead letters", meant, &sagatest.ExploreOptions{Timers: -1}, "no schedule ends completed or compensated"},
		{"cut short", modelOf(three(0), desks(0)...), &sagatest.ExploreOptions{MaxStates: 2}, "no schedule has come to an end within MaxStates, 2"},
		{"local step without tx", locally(execs), nil, "the local step note fails: it panicked: runtime error: invalid memory address or nil pointer dereference, at"},
		{"local step that fails", locally(fails), nil, "the local step note fails: no such table"},
		{"body that panics", modelOf(body, desks(0)...), nil, "it panicked: no body, at"},
		{"result that panics", modelOf(result, desks(0)...), nil, "it panicked: no result, at"},
		{"Rest that panics", restless, nil, "it panicked: no rest, at"},
		{"step without a topic", mute, nil, `the step "mute" of Steps has neither an Action nor a Compensation`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := failure(t, func(tb testing.TB) { sagatest.Explore(tb, tt.m, tt.opts) })
			if !strings.Contains(got, tt.want) {
				t.Errorf("it says\n%s\nwant %q", got, tt.want)
			}
		})
	}
}

// A local step that says no, or fails once, is no mistake of the model's.
func TestExploreLetsLocalStepsRefuse(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	r := &recorder{ctx: t.Context()}
	sagatest.Explore(r, locally(func(pgx.Tx) error { return saga.Reject("no") }), nil)
	if got := r.text(); r.failed || !strings.Contains(got, "0 completed, 1 compensated, 0 stuck") {
		t.Errorf("it says\n%s", got)
	}
}

// An end that is stuck is told, with a schedule that comes to it, and so is what nobody has looked at.
func TestExploreTellsWhatItHasSeen(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	steps := three(0)
	for i := range steps {
		steps[i].OnDeadLetter = saga.Undo // or no compensation is ever sent
	}
	m := modelOf(steps, append(desks(0), desk{name: "cruise"})...)
	m.Rest = nil
	r := &recorder{ctx: t.Context()}
	sagatest.Explore(r, m, &sagatest.ExploreOptions{Faults: 1})
	for _, want := range []string{
		"7 completed, 0 compensated, 3 stuck", `stuck or held, e.g. sagatest.Replay(t, model, "`, "where a handler has no effect outside",
		"nothing was ever sent to the action of cruise, cruise.book, the compensation of cruise, cruise.cancel", "no Rest and no Always",
	} {
		if !strings.Contains(r.text(), want) {
			t.Errorf("it says\n%s\nwant %q", r.text(), want)
		}
	}
	_, schedule, _ := strings.Cut(r.text(), "model, \"")
	schedule, _, _ = strings.Cut(schedule, "\"")
	sagatest.Replay(r, m, schedule)
	if got := r.log[len(r.log)-1]; r.failed || !strings.Contains(got, "nothing is broken:\n   1. the saga is started") {
		t.Errorf("played again it says\n%s", got)
	}
}

func TestExploreNamesWhatIsNoData(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	type room struct{ open chan int }
	type house struct{ rooms map[string][]*room }
	got := failure(t, func(tb testing.TB) {
		sagatest.Explore(tb, sagatest.Model[house, trip]{
			World: func() house { return house{map[string][]*room{"first": {{}, {open: make(chan int)}}}} },
			Saga:  func(*house) *saga.Definition[trip] { return saga.Must(saga.Define("trip", 1, three(0)...)) },
			Steps: func(*house) []consumer.Step { return modelOf(nil, desks(0)...).Steps(&agency{}) },
		}, nil)
	})
	if want := `cannot hold a chan int: sagatest_test.house.rooms["first"][1].open`; !strings.Contains(got, want) {
		t.Errorf("it says %s\nwant %q", got, want)
	}
}
