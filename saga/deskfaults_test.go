//go:build failpoints

package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// desksAtOnce bounds the cases of a test that are tried at once, each with up to
// twelve connections, and one of a process.
const desksAtOnce = 2

// quietHotel is the item of trips whose hotel does nothing and does not answer.
const quietHotel = "quiet hotel"

// newFaultDesk returns a desk with an orchestrator of trips and all who take part.
func newFaultDesk(t *testing.T) *desk {
	t.Helper()
	d := newDesk(t)
	hotel := d.booking("hotel")
	hotel.Action = consumer.On("hotel.book", func(ctx context.Context, tx pgx.Tx, in consumer.Message[request], emit consumer.Emit) error {
		if in.Body.Item == quietHotel {
			in.DidNothing()
			return nil
		}
		if _, err := tx.Exec(ctx, "INSERT INTO "+d.schema+".effect (key, what) VALUES ($1, 'hotel')", in.Key); err != nil {
			return err
		}
		return saga.Done(emit, in.Delivery, answer{Number: "a room"})
	})
	d.participate(d.booking("flight"), hotel, d.booking("car"))
	d.orchestrate(crashTrip(d.schema))
	return d
}

// lend returns d for one case.
func (d *desk) lend(t *testing.T) *desk {
	p := &place{t: t, db: d.db, schema: d.schema, broker: d.broker, relay: d.relay, ctx: d.ctx, stop: d.stop}
	return &desk{place: p, n: d.n}
}

// Start is the caller's transaction. At whichever point its process is struck, and whichever process starts the
// saga meanwhile, there is one instance, and it runs to its end.
func TestFaultsOfAStart(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	desks := faulttest.NewStock(desksAtOnce, func() *desk { return newFaultDesk(t) })
	for _, f := range strikersFaults("TestFaultsOfAStart") {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			needtest.Share(t)
			desks.Borrow(t).lend(t).strikeStart(f, t.Name())
		})
	}
	for _, where := range []string{beforeCommit, afterCommit} {
		t.Run("killed "+where, func(t *testing.T) {
			t.Parallel()
			d, key := desks.Borrow(t).lend(t), t.Name()
			d.startChild(faulttest.Fault{}, childConfig{Start: key, Dies: where}).Killed()
			d.starts(key, where == afterCommit)
		})
	}
}

// strikeStart lets a caller of Start be struck, and has another one start the same.
func (d *desk) strikeStart(f faulttest.Fault, key string) {
	d.t.Helper()
	name := pgtest.Name()
	v := d.startChild(f, childConfig{Start: key, Database: named(pgtest.URL(), name)})
	v.Struck()
	switch f.Action {
	case "kill":
		d.starts(key, false)
	case "error":
		d.ends(v, exitFailed)
		d.starts(key, false)
	case "delay": // the other one waits for it
		d.starts(key, true)
		d.ends(v, 0)
	case "stop":
		faulttest.EndIdle(d.t, d.db, d.schema, name)
		d.starts(key, false)
		v.Continue()
		d.ends(v, exitFailed)
		d.exactly(key, tripDone)
	default:
		d.t.Fatalf("no case for the action %s", f.Action)
	}
}

// starts starts a trip, which exists or not, and waits for its end.
func (d *desk) starts(key string, exists bool) {
	d.t.Helper()
	if got := start(d.place, crashTrip(d.schema), key, trip{Item: "x"}); got.Existed != exists {
		d.t.Errorf("started again: existed %t, want %t", got.Existed, exists)
	}
	d.until(key, saga.StatusCompleted)
	d.exactly(key, tripDone)
}

// ends fails the test unless a process ends with code.
func (d *desk) ends(v *faulttest.Victim, code int) {
	d.t.Helper()
	if got := v.Ended(); got != code {
		d.t.Errorf("the process ended with exit code %d, want %d; it said:\n%s", got, code, v.Said())
	}
}

// A ruling is a decision about a trip whose hotel does not answer, and what has to be
// decided for it to be one, and for the trip to end.
type ruling struct {
	before  []operator.Decision
	verb    operator.Verb
	step    string
	result  string
	becomes saga.Status // by itself, before what is decided after
	after   []operator.Decision
	ends    saga.Status
	effects string
}

var skipHotel = operator.Decision{Verb: operator.VerbSkip, Step: "hotel"}

// The effects of trips whose hotel is skipped, or not done.
const (
	skipped  = "[flight note car completed]"
	goneBack = "[flight note no note note car completed]"
	givenUp  = "[flight note no note no flight compensated]"
)

var rulings = []ruling{
	{verb: operator.VerbPause, becomes: saga.StatusPaused, after: []operator.Decision{{Verb: operator.VerbResume}, skipHotel}, ends: saga.StatusCompleted, effects: skipped},
	{before: []operator.Decision{{Verb: operator.VerbPause}}, verb: operator.VerbResume, becomes: saga.StatusRunning, after: []operator.Decision{skipHotel}, ends: saga.StatusCompleted, effects: skipped},
	{verb: operator.VerbCancel, becomes: saga.StatusCompensated, ends: saga.StatusCompensated, effects: givenUp},
	{verb: operator.VerbCompensateTo, step: "flight", becomes: saga.StatusPaused, after: []operator.Decision{{Verb: operator.VerbResume}, skipHotel}, ends: saga.StatusCompleted, effects: goneBack},
	{verb: operator.VerbSkip, step: "hotel", result: `{"number":"by phone"}`, becomes: saga.StatusCompleted, ends: saga.StatusCompleted, effects: skipped},
	{verb: operator.VerbReject, step: "hotel", becomes: saga.StatusCompensated, ends: saga.StatusCompensated, effects: givenUp},
	{verb: operator.VerbRetry, step: "hotel", becomes: saga.StatusRunning, after: []operator.Decision{skipHotel}, ends: saga.StatusCompleted, effects: skipped},
}

// Wherever a process is struck that decides about an instance, it is decided once it is
// said again, and once: the journal has it once, and each step is done and undone once.
func TestFaultsOfADecision(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	desks := faulttest.NewStock(desksAtOnce, func() *desk { return newFaultDesk(t) })
	for _, f := range strikersFaults("TestFaultsOfADecision") {
		for _, r := range rulings {
			t.Run(f.String()+" "+string(r.verb), func(t *testing.T) {
				t.Parallel()
				needtest.Share(t)
				desks.Borrow(t).lend(t).strikeDecision(f, r, t.Name())
			})
		}
	}
}

// strikeDecision lets a process be struck that decides, and has it said again.
func (d *desk) strikeDecision(f faulttest.Fault, r ruling, key string) {
	d.t.Helper()
	start(d.place, crashTrip(d.schema), key, trip{Item: quietHotel})
	d.sees(saga.Address{Key: key}, "flight done, note done, hotel running, car to-come")
	journal := d.decideAll(key, r.before)
	say := operator.Decision{Verb: r.verb, Step: r.step, By: "ann", Why: "it is a test"}
	if r.result != "" {
		say.Result = json.RawMessage(r.result)
	}
	name := pgtest.Name()
	v := d.startChild(f, childConfig{About: key, Decide: say, Database: named(pgtest.URL(), name)})
	v.Struck()
	switch f.Action {
	case "kill":
	case "error":
		d.ends(v, exitFailed)
	case "delay": // and somebody else says it meanwhile
		d.said(key, say)
		_ = v.Ended()
	case "stop":
		faulttest.EndIdle(d.t, d.db, d.schema, name)
		d.said(key, say)
		d.until(key, r.becomes)
		v.Continue()
		_ = v.Ended()
	default:
		d.t.Fatalf("no case for the action %s", f.Action)
	}
	d.said(key, say)
	d.until(key, r.becomes)
	journal = append(journal, string(r.verb))
	journal = append(journal, d.decideAll(key, r.after)...)
	d.until(key, r.ends)
	d.judgeDecision(key, r, journal)
}

// judgeDecision checks the journal, in which what may be said twice, a retry, may be more
// than once, and that the trip has come to its end.
func (d *desk) judgeDecision(key string, r ruling, journal []string) {
	d.t.Helper()
	var got string
	query := "SELECT string_agg(verb, ' ' ORDER BY id) FROM " + d.schema + ".saga_journal WHERE key = $1"
	if err := d.db.QueryRow(d.t.Context(), query, key).Scan(&got); err != nil {
		d.t.Fatal(err)
	}
	for twice := "retry retry"; strings.Contains(got, twice); {
		got = strings.ReplaceAll(got, twice, "retry")
	}
	if want := strings.Join(journal, " "); got != want {
		d.t.Errorf("the journal says %q, want %q", got, want)
	}
	if got := d.effects(key); got != r.effects {
		d.t.Errorf("effects %s, want %s", got, r.effects)
	}
	d.rests(key)
}

// said has a decision said again. It may have been taken already.
func (d *desk) said(key string, again operator.Decision) {
	d.t.Helper()
	if _, err := d.n.Decide(d.t.Context(), saga.Address{Key: key}, again); err != nil && !errors.Is(err, operator.ErrRefused) {
		d.t.Errorf("said again: %v", err)
	}
}

// decideAll decides one after the other, each as soon as that can be, and returns the
// verbs.
func (d *desk) decideAll(key string, all []operator.Decision) (verbs []string) {
	d.t.Helper()
	for _, next := range all {
		faulttest.Await(d.t, string(next.Verb)+" is not refused", func() bool {
			_, err := d.decideAt(saga.Address{Key: key}, next)
			if err != nil && !errors.Is(err, operator.ErrRefused) {
				d.t.Fatal(err)
			}
			return err == nil
		}, nil)
		verbs = append(verbs, string(next.Verb))
	}
	return verbs
}
