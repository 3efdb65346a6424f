package sagatest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/sagatest"
)

func TestRunCompletes(t *testing.T) {
	t.Parallel()
	d := saga.Must(saga.Define("trip", 1,
		saga.Step[trip]{Name: "book", All: []saga.Step[trip]{book("flight"), book("hotel")}}, book("car")))
	run := sagatest.Start(t, d, "k", trip{Guest: "Ada"})
	run.ExpectCommand("hotel")
	if got := sagatest.Expect[request](run, "flight"); got.Guest != "Ada" {
		t.Errorf("the command says %q, want Ada", got.Guest)
	}
	run.ExpectNothing()
	run.Reply("hotel", booking{"H1"})
	run.ExpectNothing()
	run.Reply("flight", booking{"F1"})
	run.ExpectCommand("car", request{Guest: "Ada"})
	run.Reply("car", booking{"C1"})
	run.ExpectStatus(saga.StatusCompleted)
	if got := run.State().Numbers; !slices.Equal(got, []string{"H1", "F1", "C1"}) {
		t.Errorf("numbers %q", got)
	}
	run.Late("car").Reply(booking{"C2"})
}

func TestRunCompensatesInReverse(t *testing.T) {
	t.Parallel()
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"), book("car")))
	run := sagatest.Start(t, d, "k", trip{})
	run.Reply("flight", booking{"F1"})
	run.Reply("hotel", booking{"H1"})
	run.Reject("car", "none left")
	run.ExpectStatus(saga.StatusCompensating)
	run.ExpectUndo("hotel")
	run.ExpectNothing()
	run.Undone("hotel")
	run.FailUndo("flight", "dead letter")
	run.ExpectStatus(saga.StatusStuck)
	run.Operator().Retry("flight")
	run.ExpectUndo("flight")
	run.Undone("flight")
	run.ExpectStatus(saga.StatusCompensated)
	if got, want := run.Reason(), "step car was rejected: none left"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}

func TestRunDeadlinesAndRetriesComeInOrder(t *testing.T) {
	t.Parallel()
	flight, hotel := book("flight"), book("hotel")
	flight.Deadline = 10 * time.Minute
	hotel.Retry = saga.Retry{Attempts: 3, Base: time.Minute, Cap: time.Hour}
	d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "both", All: []saga.Step[trip]{flight, hotel}}))
	run := sagatest.Start(t, d, "k", trip{})
	run.ExpectCommand("flight")
	first := run.ExpectCommand("hotel")
	run.Reject("hotel", "busy")
	run.Advance(59 * time.Second)
	run.ExpectNothing()
	run.Advance(time.Second)
	second := run.ExpectCommand("hotel")
	first.Late().Reply(booking{"too late"})
	second.Answer().Reject("busy")
	run.Advance(time.Hour) // the second retry after 3 min, the deadline after 10
	run.ExpectCommand("hotel")
	run.ExpectUndo("flight")
	run.Reply("hotel", booking{"H1"})
	run.ExpectUndo("hotel")
	run.Late("flight").Reply(booking{"F1"})
	run.Undone("hotel")
	run.Undone("flight")
	run.LateUndo("flight").Undone()
	run.ExpectStatus(saga.StatusCompensated)
	if run.Now() != time.Hour+time.Minute {
		t.Errorf("it is %s", run.Now())
	}
}

func TestRunPatience(t *testing.T) {
	t.Parallel()
	run := sagatest.Start(t, saga.Must(saga.Define("trip", 1, book("flight"))), "k", trip{}, sagatest.WithPatience(time.Hour))
	run.ExpectCommand("flight")
	run.Advance(2 * time.Hour)
	run.ExpectStatus(saga.StatusStuck)
	run.Reply("flight", booking{"F1"}) // frees it
	run.ExpectStatus(saga.StatusCompleted)
}

func TestRunOperator(t *testing.T) {
	t.Parallel()
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"), book("car")))
	run := sagatest.Start(t, d, "k", trip{})
	run.Refuses().Resume()
	run.Operator().Pause()
	run.ExpectStatus(saga.StatusPaused)
	run.Reply("flight", booking{"F1"})
	run.ExpectNothing()
	run.Operator().Resume()
	run.Operator().Skip("hotel", booking{"by phone"}, "it was booked by phone")
	run.ExpectCommand("car")
	run.Operator().CompensateTo("flight", "another hotel")
	run.ExpectCommand("hotel")
	run.Undone("car")
	run.ExpectUndo("hotel")
	run.Undone("hotel")
	run.ExpectStatus(saga.StatusPaused)
	run.Operator().Resume()
	run.ExpectCommand("hotel")
	run.Operator().Reject("hotel", "there is none")
	run.Undone("flight")
	run.ExpectStatus(saga.StatusCompensated)
	run.Refuses().Cancel("too late")
}

func TestRunNested(t *testing.T) {
	t.Parallel()
	stay := saga.Must(saga.Define("stay", 1, book("room"), book("breakfast")))
	d := saga.Must(saga.Define("trip", 1, book("flight"),
		saga.Step[trip]{Name: "stay", Do: saga.Nested(stay, func(s *trip) trip { return *s }, func(s *trip, c trip) { s.Numbers = c.Numbers })},
		book("car")))
	run := sagatest.Start(t, d, "k", trip{Guest: "Ada"})
	run.Reply("flight", booking{"F1"})
	inner := sagatest.Child[trip](run, "stay")
	inner.ExpectCommand("room", request{"Ada"})
	inner.Reply("room", booking{"R1"})
	inner.Reply("breakfast", booking{"B1"})
	inner.ExpectStatus(saga.StatusCompleted)
	if got := run.State().Numbers; !slices.Equal(got, []string{"F1", "R1", "B1"}) {
		t.Errorf("numbers %q", got)
	}
	run.Reject("car", "none")
	inner.ExpectUndo("breakfast")
	inner.Undone("breakfast")
	inner.Undone("room")
	inner.ExpectStatus(saga.StatusCompensated)
	run.Undone("flight")
	run.ExpectStatus(saga.StatusCompensated)
}

func TestRunWithTx(t *testing.T) {
	t.Parallel()
	db, schema := pgtest.Schema(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "CREATE TABLE "+schema+".seat (n int)"); err != nil {
		t.Fatal(err)
	}
	tries := 0
	d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{
		Name: "seat", When: func(s *trip) bool { return s.Guest != "" },
		Do: saga.Local(func(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *trip) error {
			if _, err := tx.Exec(ctx, "INSERT INTO "+schema+".seat VALUES ($1)", turn.Attempt); err != nil {
				return err
			}
			turn.Emit(outbox.Message{Topic: "seats", Step: "seats", Payload: []byte(`{}`)})
			if tries++; tries == 1 {
				return errors.New("no")
			}
			s.Numbers = append(s.Numbers, fmt.Sprint(turn.Attempt))
			return nil
		}),
	}))
	run := sagatest.Start(t, d, "k", trip{Guest: "Ada"}, sagatest.WithTx(tx))
	run.ExpectStatus(saga.StatusRunning)
	run.Advance(time.Second)
	run.ExpectStatus(saga.StatusCompleted)
	run.ExpectMessage("seats")
	var seats string
	if err := tx.QueryRow(t.Context(), "SELECT string_agg(n::text, ',') FROM "+schema+".seat").Scan(&seats); err != nil {
		t.Fatal(err)
	}
	if got := run.State().Numbers; seats != "2" || !slices.Equal(got, []string{"2"}) {
		t.Errorf("seats %s, numbers %q, want those of the second attempt", seats, got)
	}
	sagatest.Start(t, d, "other", trip{}).ExpectStatus(saga.StatusCompleted) // its condition does not hold
}

func TestRunFailures(t *testing.T) {
	t.Parallel()
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	tests := []struct {
		name string
		do   func(run *sagatest.Run[trip])
		want []string
	}{
		{"leftover", func(run *sagatest.Run[trip]) {}, []string{"nobody has expected a command to flight (flight.book, attempt 1)", "the run: trip, key k, started at run_test.go:", "0s        command    flight, attempt 1, to flight.book {\"guest\":\"Ada\"}"}},
		{"other body", func(run *sagatest.Run[trip]) { run.ExpectCommand("flight", request{"Bob"}) }, []string{`was sent {"guest":"Ada"}, want {"guest":"Bob"}`}},
		{"not sent", func(run *sagatest.Run[trip]) { run.ExpectCommand("hotel") }, []string{"step hotel was sent no command"}},
		{"twice", func(run *sagatest.Run[trip]) { run.ExpectCommand("flight"); run.ExpectCommand("flight") }, []string{"or none that is not expected already"}},
		{"no such step", func(run *sagatest.Run[trip]) { run.ExpectCommand("fligth") }, []string{`no step "fligth"`}},
		{"answer too early", func(run *sagatest.Run[trip]) { run.Reply("hotel", booking{}) }, []string{"step hotel has no command that could be answered"}},
		{"answer twice", func(run *sagatest.Run[trip]) { run.Reply("flight", booking{}); run.Reply("flight", booking{}) }, []string{"nobody waits for this reply", "answer     flight, attempt 1, done"}},
		{"late and taken", func(run *sagatest.Run[trip]) { run.Late("flight").Reply(booking{}) }, []string{"the late answer was taken"}},
		{"result that does not fit", func(run *sagatest.Run[trip]) { run.Reply("flight", "a text") }, []string{"does not fit the definition"}},
		{"status", func(run *sagatest.Run[trip]) { run.ExpectStatus(saga.StatusCompleted) }, []string{"the status is running (), want completed"}},
		{"refused verb", func(run *sagatest.Run[trip]) { run.Operator().Resume() }, []string{"it is not paused"}},
		{"verb not refused", func(run *sagatest.Run[trip]) { run.Refuses().Pause() }, []string{"pause was not refused"}},
		{"no child", func(run *sagatest.Run[trip]) { sagatest.Child[trip](run, "flight") }, []string{"has not begun a nested saga"}},
		{"no message", func(run *sagatest.Run[trip]) { run.ExpectMessage("seats") }, []string{"no message to seats"}},
		{"something", func(run *sagatest.Run[trip]) { run.ExpectNothing() }, []string{"there is a command to flight"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := failure(t, func(tb testing.TB) { tt.do(sagatest.Start(tb, d, "k", trip{Guest: "Ada"})) })
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("it says\n%s\nwant %q", got, want)
				}
			}
		})
	}
	sagatest.Start(t, d, "k", trip{}, sagatest.AllowLeftovers())
}

// What is due in a nested saga comes before what is due later around it.
func TestRunTimersOfNestedSagasComeInOrder(t *testing.T) {
	t.Parallel()
	room, flight := book("room"), book("flight")
	room.Deadline, flight.Deadline = time.Minute, 10*time.Minute
	stay := saga.Must(saga.Define("stay", 1, room))
	d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "both", All: []saga.Step[trip]{
		flight, {Name: "stay", Do: saga.Nested(stay, func(s *trip) trip { return *s }, nil)},
	}}))
	run := sagatest.Start(t, d, "k", trip{}, sagatest.AllowLeftovers())
	run.Advance(time.Hour)
	inner, outer := strings.Index(run.Timeline(), "1m0s      undo       stay/room"), strings.Index(run.Timeline(), "10m0s     undo       flight")
	if inner < 0 || outer < inner {
		t.Errorf("the deadlines passed in another order:\n%s", run.Timeline())
	}
}

// Local steps are in the timeline, as they have ended.
func TestRunTellsOfLocalSteps(t *testing.T) {
	t.Parallel()
	does := map[string]func(tx pgx.Tx) error{
		"works": func(pgx.Tx) error { return nil }, "refuses": func(pgx.Tx) error { return saga.Reject("no") },
		"writes": func(tx pgx.Tx) error { _, err := tx.Exec(context.Background(), "SELECT 1"); return err },
	}
	local := func(name string, attempts int) saga.Step[trip] {
		do := saga.Local(func(_ context.Context, tx pgx.Tx, turn saga.Turn, _ *trip) error {
			if turn.Undo {
				return nil
			}
			return does[name](tx)
		})
		return saga.Step[trip]{Name: name, Do: do, Undo: do, Retry: saga.Retry{Attempts: attempts}}
	}
	for last, want := range map[string]string{
		"refuses": "local      inner/refuses, attempt 1, rejected: no",
		"writes":  "local      inner/writes, attempt 1, failed: it panicked: runtime error: invalid memory address or nil pointer dereference, at ",
	} {
		inner := saga.Must(saga.Define("inner", 1, local("works", 1), local(last, 1)))
		d := saga.Must(saga.Define("outer", 1, saga.Step[trip]{Name: "inner", Do: saga.Nested(inner, func(s *trip) trip { return *s }, nil)}))
		run := sagatest.Start(t, d, "k", trip{})
		run.ExpectStatus(saga.StatusCompensated)
		got := run.Timeline()
		for _, line := range []string{"local      inner/works, attempt 1, done", want, "local      inner/works, attempt 1, undone"} {
			if !strings.Contains(got, line) {
				t.Errorf("it says\n%s\nwant %q", got, line)
			}
		}
		if strings.Contains(got, "panicked") && !strings.Contains(got, "WithTx is not set") {
			t.Errorf("it does not say what is missing:\n%s", got)
		}
	}
}

// A function of the definition that panics ends the test with what has happened, like all else.
func TestRunTellsOfPanics(t *testing.T) {
	t.Parallel()
	d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{
		Name: "flight", Do: saga.Remote("flight.book", (*trip).request, func(*trip, booking) { panic("no result") }),
		Undo: saga.Remote[trip, request, any]("flight.cancel", (*trip).request, nil),
	}))
	got := failure(t, func(tb testing.TB) { sagatest.Start(tb, d, "k", trip{}).Reply("flight", booking{}) })
	for _, want := range []string{"step flight: it panicked: no result, at ", "run_test.go:", "what has happened:"} {
		if !strings.Contains(got, want) {
			t.Errorf("it says\n%s\nwant %q", got, want)
		}
	}
}
