package sagatest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

// A Model is a saga with its participants, for [Explore]. W is the world: all that
// the participants' handlers change and that is not in a database, such as a map of bookings. It
// must be data; unexported fields are data, too.
//
// A transaction that is lost takes back what a handler has done to the world. If part
// of it is outside of the transaction, such as a payment provider, give W a method
// RollBack: see [RollBacker].
type Model[W, S any] struct {
	// Saga returns the definition. Its local steps, if it has any, work on w.
	Saga  func(w *W) *saga.Definition[S]
	State S // of the instance when it starts

	// Steps are those of all participants, as they are given to [consumer.New]. They
	// work on w, and keep nothing elsewhere.
	Steps func(w *W) []consumer.Step

	World func() W // how the world begins; default: the zero value

	// Rest is asked whenever nothing is left to happen, Always after each event. An
	// error of theirs is what is looked for.
	Rest, Always func(w *W, o Outcome[S]) error

	// Tx is the tx of handlers and local steps: the test begins it, on a database
	// that has their tables, and rolls it back. Each of their
	// transactions is a savepoint in it, a crash rolls back to that, and in the end
	// all is as it was. What is seen at COMMIT only, such as a deferred constraint, is not seen.
	// Default: they are given a nil tx, and what they queue is not executed.
	Tx pgx.Tx

	// Fingerprint is a query that tells two states of the tables in Tx apart, by one text. It
	// saves time. Default: states are told apart by all that has been done to them.
	Fingerprint string

	// DeadLetters says that handlers are meant to give up: to return an error, or to panic, until their
	// message is a dead letter, and local steps until their attempts are used up. Default: that is
	// a failure, unless Explore has had them fail.
	DeadLetters bool
}

// A RollBacker is a world of which not all is inside of transactions: RollBack is
// called on a *W when a transaction is lost, with what the world was before. It takes back what was in
// the transaction. Without it all is taken back.
type RollBacker[W any] interface{ RollBack(before W) }

// An Outcome is where the saga is.
type Outcome[S any] struct {
	Status saga.Status
	Reason string
	State  S
	Dead   int    // dead letters
	Tx     pgx.Tx // that of the Model, as of now
}

// ExploreOptions say how far [Explore] goes. In those with a default, a negative number
// means none.
type ExploreOptions struct {
	Faults int // in one schedule, of all kinds; default: 2

	Duplicates int // messages that are published twice; default: 1
	Crashes    int // at any of four places in the handling of a message; default: 1
	Errors     int // handlers that fail once, or for so long that their message is a dead letter; default: 1
	Timers     int // deadlines, and waits, that end although messages are under way; default: 1
	Cancels    int // decisions of a person to cancel; default: 0

	MaxSteps  int // events in a schedule, over which it is taken for one without an end; default: 300
	MaxStates int // over which Explore ends, and says so; default: 500,000
}

// Explore runs a saga with its participants through every order in which messages can
// arrive, and every place at which a number of faults can happen, and looks for one that
// breaks what must hold: what Rest and Always of m say, and that
//
//   - the saga comes to an end, or is stuck over a dead letter,
//   - each attempt at a step is done once at most and undone once at most, and not done after it was undone,
//   - what a compensated saga has done is undone, in reverse order, and nothing of a completed one,
//   - what the saga takes for done is done, and nothing is undone once the pivot is done.
//
// It also fails if a handler gives up by itself, see DeadLetters of [Model], if a function of the definition
// panics, and if no schedule ends completed or compensated: then nothing was looked at.
//
// A saga that is stuck over a dead letter is as it should be, unless its participants could have done
// better: how many schedules end so, and one of them, is logged, with what was never sent to
// a participant. Whose saga must never be stuck says so in Rest, by an error for [saga.StatusStuck].
// It is no failure by itself because it is the only right end for an effect outside of a
// transaction: whether that was made is for a person to find out.
//
// Schedules without faults come first, then those with one, so that what is found is small. It is
// reported as a numbered list, with a text for [Replay].
//
// The same model is explored in the same way each time. Messages are delivered to the handlers that are given, the inbox is
// that of package consumer and the decisions are those of package saga; broker, relay, clock and tables are
// modelled. A nil opts means the defaults.
func Explore[W, S any](t testing.TB, m Model[W, S], opts *ExploreOptions) {
	t.Helper()
	began := time.Now()
	x := newSearch(t, m, opts, "")
	found := x.searchAll()
	if found == nil {
		t.Logf("%s", x.summarize(time.Since(began).Round(time.Millisecond)))
		if why := x.endedNowhere(); why != "" {
			t.Errorf("%s", why)
		}
		return
	}
	t.Errorf("%s", x.reportFinding(found))
}

// Replay runs one schedule, which [Explore] has reported, and reports it again if it
// still breaks something. Otherwise it logs what happens in it.
func Replay[W, S any](t testing.TB, m Model[W, S], schedule string) {
	t.Helper()
	deviations, err := parseSchedule(schedule)
	if err != nil {
		t.Fatalf("schedule: %v", err)
	}
	x := newSearch(t, m, nil, "")
	found := x.runSchedule(deviations)
	if found.broken != "" {
		t.Errorf("%s", x.reportFinding(found))
		return
	}
	t.Logf("nothing is broken:\n%s", found.listLines())
}

// withDefaults fills in what is not set.
func (o *ExploreOptions) withDefaults() ExploreOptions {
	is := ExploreOptions{}
	if o != nil {
		is = *o
	}
	for field, preset := range map[*int]int{
		&is.Faults: 2, &is.Duplicates: 1, &is.Crashes: 1, &is.Errors: 1, &is.Timers: 1, &is.MaxSteps: 300, &is.MaxStates: 500_000,
	} {
		switch {
		case *field == 0:
			*field = preset
		case *field < 0:
			*field = 0
		}
	}
	return is
}

func (x *search) describeUnfinished() string {
	if !x.limitReached() {
		return ""
	}
	return fmt.Sprintf("; there are more than MaxStates, %d: what takes %d faults is not all seen", x.opts.MaxStates, x.limit-1)
}
