package sagatest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

// A Model is a saga with its participants, for [Explore]. W is the world: everything that the participants' handlers
// change outside of a database, such as a map of bookings. It must be data; unexported fields are data, too.
//
// A transaction that is rolled back takes back a handler's changes of the world. If part of the world is outside of
// the transaction, such as a payment provider, give W a method RollBack: see [RollBacker].
type Model[W, S any] struct {
	// Saga returns the definition. Its local steps, if it has any, work on w.
	Saga  func(w *W) *saga.Definition[S]
	State S // of the instance when it starts

	// Steps are those of all participants, as for [consumer.New]. They work on w, and keep no state elsewhere.
	Steps func(w *W) []consumer.Step

	World func() W // returns the first world; default: the zero value

	// Rest is called at the end of each schedule, Always after each event. Explore looks for a schedule in which one of
	// them returns an error.
	Rest, Always func(w *W, o Outcome[S]) error

	// Tx is the tx of handlers and local steps. The test begins it, on a database that has their tables, and rolls it
	// back. Each of their transactions is a savepoint in Tx, and a crash rolls back to it. Explore leaves the tables as
	// they were. It does not find errors that PostgreSQL reports at COMMIT only, such as those of deferred constraints.
	// Default: their tx is nil, and the statements that they queue are not executed.
	Tx pgx.Tx

	// Fingerprint is a query that returns one text, which differs for different states of the tables in Tx. It saves
	// time. Default: states differ if their histories of commits differ.
	Fingerprint string

	// DeadLetters allows handlers to return errors, or to panic, until their message is a dead letter, and local steps
	// until their attempts are used up. Default: that is a failure, unless Explore has injected the error.
	DeadLetters bool
}

// A RollBacker is a world with a part outside of transactions. RollBack is called on a *W when a transaction is rolled
// back, with the world before it. It restores the part that was in the transaction. Without RollBack the whole world
// is restored.
type RollBacker[W any] interface{ RollBack(before W) }

// An Outcome is the present state of the saga.
type Outcome[S any] struct {
	Status saga.Status
	Reason string
	State  S
	Dead   int    // dead letters
	Tx     pgx.Tx // that of the Model, as of now
}

// ExploreOptions limit what [Explore] tries. In those with a default, a negative number means none.
type ExploreOptions struct {
	Faults int // in one schedule, of all kinds; default: 2

	Duplicates int // messages that are published twice; default: 1
	Crashes    int // at any of four places in the handling of a message; default: 1
	Errors     int // handlers that fail once, or until their message is a dead letter; default: 1
	Timers     int // deadlines, and waits, that end while messages are in flight; default: 1
	Cancels    int // decisions of a person to cancel; default: 0

	MaxSteps  int // events in a schedule; with more it counts as one without an end; default: 300
	MaxStates int // over which Explore ends, and reports that; default: 500,000
}

// Explore runs a saga with its participants through every order in which messages can arrive, with a number of faults
// at every place. It looks for a schedule in which Rest or Always of m returns an error, or which breaks one of these
// rules:
//
//   - The saga comes to an end, or is stuck or held over a dead letter.
//   - Each attempt at a step is done once at most and undone once at most, and is not done after it was undone.
//   - Every step that a compensated saga has done is undone, in reverse order. No step of a completed saga is undone.
//   - A step that counts as done is done. No step is undone once the pivot is done.
//
// Explore also fails if a handler gives up without an injected error (see DeadLetters of [Model]), if a function of the
// definition panics, and if no schedule ends completed or compensated, since then nothing was tested.
//
// A saga may be held over a dead letter, until its redrive, or be stuck over one: that is the only right end for an
// effect outside of a transaction, since a person has to find out whether it was made. Explore logs how many schedules
// end so, one of them, and the messages that no schedule has sent to a participant. If a saga must never be stuck,
// return an error for [saga.StatusStuck] from Rest.
//
// Schedules without faults come first, then those with one, so that the reported schedule is small. The report is a
// numbered list, with a text for [Replay].
//
// The same model is explored in the same way each time. Messages are delivered to the model's handlers. The inbox is
// that of package consumer, and the decisions are those of package saga; broker, relay, clock and tables are modelled.
// A nil opts means the defaults.
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

// Replay runs one schedule that [Explore] has reported, and reports it again if it still breaks a rule. Otherwise it
// logs the events of the schedule.
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

// withDefaults fills in the defaults.
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

// describeUnfinished says that MaxStates was reached, if it was.
func (x *search) describeUnfinished() string {
	if !x.limitReached() {
		return ""
	}
	return fmt.Sprintf("; there are more than MaxStates, %d: what takes %d faults is not all seen", x.opts.MaxStates, x.limit-1)
}
