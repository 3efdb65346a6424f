package sagatest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/saga"
	"github.com/sagamill/sagamill/sagatest"
)

// An agency is the world of the tests' participants.
type agency struct {
	booked   map[string]int // by step: bookings less cancellations
	tries    map[string]int // by step
	provider map[string]int // what another system knows of, which no transaction takes back
}

func (a *agency) RollBack(before agency) {
	before.provider = a.provider
	*a = before
}

func newAgency() agency { return agency{map[string]int{}, map[string]int{}, map[string]int{}} }

// A desk is a participant that books.
type desk struct {
	name    string
	refuses int  // so many attempts
	strict  bool // it cancels without looking whether there is something to cancel
	outside bool // it tells the provider within its transaction
}

func (d desk) step(a *agency) consumer.Step {
	return consumer.Step{
		Name: d.name,
		Action: saga.On(d.name+".book", func(context.Context, pgx.Tx, consumer.Message[request]) (booking, error) {
			if a.tries[d.name]++; a.tries[d.name] <= d.refuses {
				return booking{}, saga.Reject("there is none")
			}
			a.booked[d.name]++
			if d.outside {
				a.provider[d.name]++
			}
			return booking{d.name}, nil
		}),
		Compensation: saga.OnUndo(d.name+".cancel", func(context.Context, pgx.Tx, consumer.Message[request]) error {
			if d.strict || a.booked[d.name] > 0 {
				a.booked[d.name]--
			}
			return nil
		}),
	}
}

type model = sagatest.Model[agency, trip]

// modelOf is a saga of some steps at some desks, which always answer.
func modelOf(steps []saga.Step[trip], desks ...desk) model {
	return model{
		World: newAgency,
		Saga:  func(*agency) *saga.Definition[trip] { return saga.Must(saga.Define("trip", 1, steps...)) },
		Steps: func(a *agency) (all []consumer.Step) {
			for _, d := range desks {
				all = append(all, saga.Participant(d.step(a)))
			}
			return all
		},
		Rest: conserved,
	}
}

// three are steps one after the other.
func three(deadline time.Duration) []saga.Step[trip] {
	steps := []saga.Step[trip]{book("flight"), book("hotel"), book("car")}
	for i := range steps {
		steps[i].Deadline = deadline
	}
	return steps
}

// desks are those of three, the last of which refuses some attempts.
func desks(refuses int) []desk {
	return []desk{{name: "flight"}, {name: "hotel"}, {name: "car", refuses: refuses}}
}

const always = 1 << 20

// conserved: all is booked once, or nothing is.
func conserved(a *agency, o sagatest.Outcome[trip]) error {
	for name, n := range a.booked {
		if n < 0 || n > 1 || n == 1 && o.Status == saga.StatusCompensated {
			return fmt.Errorf("%s: %d booked, and the saga is %s", name, n, o.Status)
		}
		if a.provider[name] > 1 {
			return fmt.Errorf("%s: the provider knows of %d", name, a.provider[name])
		}
	}
	if o.Status == saga.StatusCompleted && len(o.State.Numbers) != 3 {
		return fmt.Errorf("the saga is completed, and knows of %q", o.State.Numbers)
	}
	return nil
}

// pivoted is a saga that only goes forward once the hotel is booked.
func pivoted() []saga.Step[trip] {
	steps := three(time.Minute)
	steps[1].Undo, steps[1].Pivot = saga.Action[trip]{}, true
	steps[2].Undo, steps[2].Retry = saga.Action[trip]{}, saga.Retry{Attempts: 3}
	return steps
}

// parallel has two steps beside each other, and a third within a saga of its own.
func parallel() []saga.Step[trip] {
	rent := saga.Must(saga.Define("rent", 1, book("car")))
	flight, hotel := book("flight"), book("hotel")
	flight.Deadline, hotel.Retry = time.Minute, saga.Retry{Attempts: 2}
	return []saga.Step[trip]{
		{Name: "both", All: []saga.Step[trip]{flight, hotel}},
		{Name: "rent", Do: saga.Nested(rent, func(s *trip) trip { return *s }, func(s *trip, c trip) { s.Numbers = c.Numbers })},
	}
}

func TestExploreFindsNothingInWhatIsRight(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	retried := three(time.Minute)
	retried[2].Retry = saga.Retry{Attempts: 3}
	tests := []struct {
		name   string
		m      model
		faults int
	}{
		{"completes", modelOf(three(time.Minute), desks(0)...), 4},
		{"compensates", modelOf(three(time.Minute), desks(always)...), 3},
		{"without deadlines", modelOf(three(0), desks(always)...), 3},
		{"tries again", modelOf(retried, desks(2)...), 2},
		{"pivot", modelOf(pivoted(), desks(1)...), 3},
		{"parallel and nested", modelOf(parallel(), desks(0)...), 2},
		{"parallel and nested, compensates", modelOf(parallel(), desks(always)...), 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			needtest.Share(t)
			sagatest.Explore(t, tt.m, &sagatest.ExploreOptions{Faults: min(tt.faults, mostFaults), Cancels: 1})
		})
	}
}

// A message that has nothing to do any more is handled before all else, and at no other time. Nothing is missed by that.
func TestExploreMissesNoEnd(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for name, m := range map[string]model{
		"runs": modelOf(three(time.Minute), desks(0)...), "refused": modelOf(three(time.Minute), desks(always)...),
		"parallel": modelOf(parallel(), desks(0)...),
	} {
		opts := &sagatest.ExploreOptions{Faults: 2}
		fast, patient := sagatest.Ends(t, m, opts, false), sagatest.Ends(t, m, opts, true)
		if diff := cmp.Diff(patient, fast); diff != "" {
			t.Errorf("%s: it can come to this (-) and does not, or the reverse (+):\n%s", name, diff)
		}
	}
}

func TestExploreFindsBugsOfTheEngine(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	retried := three(0)
	retried[2].Retry = saga.Retry{Attempts: 3}
	runs, refused := modelOf(three(time.Minute), desks(0)...), modelOf(three(0), desks(always)...)
	tests := []struct {
		bug   sagatest.Bug
		m     model
		want  string
		lines int
	}{
		{sagatest.AckBeforeCommit, refused, "waits for ever", 2},
		{sagatest.DedupeBeforeWork, refused, "waits for ever", 3},
		{sagatest.NoTombstone, runs, "is done after its compensation", 5},
		{sagatest.UndoNotDeduped, refused, "the compensation of step hotel, 2.1, is done twice", 10},
		{sagatest.PublishBeforeCommit, runs, "the orchestrator gets saga.reply twice, with different bodies", 10},
		{sagatest.MarkBeforePublish, refused, "waits for ever", 2},
		{sagatest.KeyWithoutN, modelOf(retried, desks(1)...), "waits for ever", 10},
		{sagatest.FoldTwice, runs, "the saga is completed, and knows of", 10},
		{sagatest.ForwardOrder, refused, "step flight is undone before hotel", 9},
		{sagatest.ForgetTimedOut, runs, "is compensated, and step", 10},
		{sagatest.IgnorePivot, modelOf(pivoted(), desks(0)...), "step flight is undone after the pivot", 8},
		{sagatest.LateIsDone, runs, "the saga is completed, and step flight is undone", 10},
	}
	for _, tt := range tests {
		t.Run(string(tt.bug), func(t *testing.T) {
			t.Parallel()
			needtest.Share(t)
			found := sagatest.ExploreWith(t, tt.m, nil, tt.bug)
			check(t, found, tt.want, tt.lines)
		})
	}
}

func TestExploreFindsBugsOfAuthors(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	silent := modelOf(three(time.Minute), desks(0)...)
	silent.Steps = func(a *agency) (all []consumer.Step) {
		for _, d := range desks(0) {
			all = append(all, d.step(a)) // and not saga.Participant of it
		}
		return all
	}
	outside := desks(0)
	outside[1].outside = true
	tests := []struct {
		name  string
		m     model
		want  string
		lines int
	}{
		{"does not always answer", silent, "step flight is undoing and nobody answers", 5},
		{"effect outside of the transaction", modelOf(three(time.Minute), outside...), "hotel: the provider knows of 2", 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			found := sagatest.ExploreWith(t, tt.m, nil, "")
			check(t, found, tt.want, tt.lines)
			got := failure(t, func(tb testing.TB) { sagatest.Replay(tb, tt.m, found.Schedule) })
			if got != found.Report {
				t.Errorf("played again it says\n%s\nwant\n%s", got, found.Report)
			}
		})
	}
}

// What was refused is never undone, also if the saga hears of it too late: a participant
// need not look whether there is something to undo.
func TestExploreUndoesNothingThatWasRefused(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	strict := desks(always)
	strict[2].strict = true
	found := sagatest.ExploreWith(t, modelOf(three(time.Minute), strict...), nil, "")
	if found.Broken != "" || found.Events < 1000 {
		t.Errorf("%d events, broken %q\n%s", found.Events, found.Broken, found.Report)
	}
}

// check looks whether what was planted was found, in a small schedule.
func check(t *testing.T, found sagatest.Explored, want string, lines int) {
	t.Helper()
	t.Logf("%d lines, %d events\n%s", found.Lines, found.Events, found.Report)
	if !strings.Contains(found.Broken, want) {
		t.Errorf("it found %q, want %q", found.Broken, want)
	}
	if found.Lines > lines {
		t.Errorf("it took %d lines to show it, want at most %d", found.Lines, lines)
	}
}
