//go:build failpoints

package consumer

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/outbox"
)

// The lease of a child's attempt at its effect, without and with a question, and for
// how long a child is delayed that is to lose it.
const (
	childTimeout = time.Second
	childMargin  = 100 * time.Millisecond

	overLease       = childTimeout + 4*childMargin
	overDoubleLease = 2*childTimeout + 4*childMargin
)

// childEffect makes the child's step one of effects, if the environment says
// where the provider is.
func childEffect(f *fixture, step *Step) {
	url := os.Getenv("SAGAMILL_TEST_PROVIDER")
	if url == "" {
		return
	}
	*step = f.receiptStep(url, os.Getenv("SAGAMILL_TEST_VERIFY") != "")
	step.Timeout, step.AskFirst = childTimeout, os.Getenv("SAGAMILL_TEST_ASK_FIRST") != ""
}

// receiptStep is effectStep whose record emits a receipt besides.
func (f *fixture) receiptStep(url string, verify bool) Step {
	s := f.effectStep(url, verify)
	for what, in := range map[string]*Input{"pay": &s.Action, "refund": &s.Compensation} {
		e, record := *in.effect, in.effect.record
		e.record = func(ctx context.Context, tx pgx.Tx, d Delivery, body, result any, emit Emit) error {
			emit(outbox.Message{Topic: "receipts", Type: what, Step: "receive", N: what})
			return record(ctx, tx, d, body, result, emit)
		}
		in.effect = &e
	}
	return s
}

// A course is one that an effect takes to a point at which its process is struck.
type course struct {
	hit     int  // the hit of the point that matters; default: the first
	loses   bool // the provider also loses its first reply
	doubted bool // an attempt before has ended without an answer, so that the provider is asked
	brief   bool // its process is not struck so that it loses its lease: other courses are

	forgotten bool // its effect has happened, but the database was set back, and the message is replayed
	replayed  bool // it is replayed, and has found nothing: it is asked for once more, and happens
	first     bool // it is asked for first, and happens
}

// asks reports whether the provider is asked.
func (c course) asks() bool { return c.doubted || c.forgotten || c.replayed || c.first }

// courses are those to each point. The commits of an effect's two transactions are points as
// well: the first hit is that of the lease, the second that of the result.
var courses = map[string][]course{
	"effect/after-claim":   {{}, {loses: true, brief: true}, {forgotten: true, brief: true}, {first: true, brief: true}},
	"effect/before-verify": {{doubted: true}, {forgotten: true, brief: true}, {replayed: true, brief: true}, {first: true, brief: true}},
	"effect/after-verify":  {{doubted: true}, {forgotten: true, brief: true}, {replayed: true, brief: true}, {first: true, brief: true}},
	"effect/before-call":   {{}, {loses: true, brief: true}, {replayed: true, brief: true}, {first: true, brief: true}},
	"effect/after-call":    {{}, {loses: true, brief: true}, {replayed: true, brief: true}, {first: true, brief: true}},
	"effect/before-record": {{}, {forgotten: true, brief: true}, {replayed: true, brief: true}},
	"effect/after-record":  {{}, {forgotten: true, brief: true}, {replayed: true, brief: true}},

	"consumer/before-commit": {{brief: true}, {hit: 2, brief: true}, {forgotten: true, brief: true}, {hit: 2, forgotten: true, brief: true}},
	"consumer/after-commit": {{brief: true}, {hit: 2, brief: true}, {hit: 2, loses: true, brief: true},
		{forgotten: true, brief: true}, {hit: 2, forgotten: true, brief: true}, {hit: 2, first: true, brief: true}},
	"consumer/before-ack": {{brief: true}, {forgotten: true, brief: true}},
}

func (c course) String() string {
	var words []string
	for word, is := range map[string]bool{"loses": c.loses, "doubted": c.doubted, "forgotten": c.forgotten, "replayed": c.replayed, "first": c.first} {
		if is {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// Whatever strikes a process in the course of an effect, and one reply besides, the
// provider's ledger has one line for the payment and one for its refund, and each
// has its receipt.
func TestFaultsOfAnEffect(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	faulttest.Unreached(t, courses, "effect")
	fixtures := faulttest.NewStock(casesAtOnce, func() *fixture { return newFixture(t) })
	for _, f := range faulttest.Faults("effect", "consumer") {
		for _, c := range courses[f.Name] {
			for _, honours := range []bool{true, false} {
				if c.skips(f, honours) {
					continue
				}
				t.Run(fmt.Sprint(f.At(c.hit), " ", c, " honours ", honours), func(t *testing.T) {
					t.Parallel()
					needtest.Share(t)
					d := &drama{fixture: fixtures.Borrow(t), p: newProvider(t, honours), fault: f.At(c.hit), course: c}
					d.forget(t)
					step := d.receiptStep(d.p.url, !honours)
					step.AskFirst = c.first
					d.c = d.consumer(t, Options{}, step)
					d.play(t)
				})
			}
		}
	}
}

// skips reports whether there is no such case.
func (c course) skips(f faulttest.Fault, honours bool) bool {
	if c.asks() && honours {
		return true // then nobody asks
	}
	return c.brief && (f.Action == "stop" || f.Action == "delay")
}

// A drama is one case.
type drama struct {
	*fixture
	p      *provider // one honours keys, the other one can only be asked
	c      *Consumer // which takes over
	fault  faulttest.Fault
	course course
}

// play strikes a process over the payment, and one over its refund.
func (d *drama) play(t *testing.T) {
	t.Helper()
	for _, undoing := range []bool{false, true} {
		v := d.start(t, undoing)
		switch d.fault.Action {
		case "kill":
			faulttest.AtRest(t, d.pool, d.schema)
		case "error":
			d.ended(t, v)
		case "delay":
			d.takeOver(t)
			d.ended(t, v)
		case "stop":
			faulttest.EndIdle(t, d.pool, d.schema, "")
			d.takeOver(t)
			d.finishParked(t, d.c)
			before := d.look(t)
			v.Continue()
			d.ended(t, v)
			if diff := cmp.Diff(before, d.look(t)); diff != "" {
				t.Errorf("after the process woke, -before +after:\n%s", diff)
			}
		default:
			t.Fatalf("no case for the action %s", d.fault.Action)
		}
		d.redeliver(t, undoing)
		d.finishParked(t, d.c)
	}
	want := sceneOfEffect{Effects: "receipt of pay k 1, receipt of refund k 2", Calls: "pay, refund / 2", Receipts: "pay refund", State: "compensated"}
	if diff := cmp.Diff(want, d.look(t)); diff != "" {
		t.Errorf("in the end, -want +got:\n%s", diff)
	}
	if over := d.texts(t, "SELECT key FROM {schema}.inbox WHERE greatest(attempts, undo_attempts) > 5"); len(over) > 0 {
		t.Errorf("over the budget: %s", d.row(t))
	}
	faulttest.AtRest(t, d.pool, d.schema)
}

// start returns a process that has been struck on its course.
func (d *drama) start(t *testing.T, undoing bool) *faulttest.Victim {
	t.Helper()
	env := []string{"SAGAMILL_TEST_SCHEMA=" + d.schema, "SAGAMILL_TEST_PROVIDER=" + d.p.url}
	if !d.p.honours {
		env = append(env, "SAGAMILL_TEST_VERIFY=1")
	}
	if undoing {
		env = append(env, "SAGAMILL_TEST_UNDO=1")
	}
	if d.course.loses || d.course.doubted {
		d.p.loseReply()
	}
	f := d.fault
	f.Delay = overLease
	switch {
	case d.course.doubted, d.course.replayed:
		handle(t, d.c, d.message(undoing))
		d.pass(t)
		env = append(env, "SAGAMILL_TEST_PARKED=1")
		f.Delay = overDoubleLease
	case d.course.forgotten:
		d.setBack(t, func() { handle(t, d.c, d.message(undoing)); d.finishParked(t, d.c) })
		env = append(env, "SAGAMILL_TEST_REPLAYED=1")
	case d.course.first:
		env = append(env, "SAGAMILL_TEST_ASK_FIRST=1")
	}
	v := faulttest.Start(t, f, env...)
	v.Struck()
	return v
}

func (d *drama) message(undoing bool) *message.Message {
	msg := act("k")
	if undoing {
		msg = undo("k")
	}
	if d.course.forgotten || d.course.replayed {
		msg = replayed(msg)
	}
	return msg
}

// redeliver does what the broker does if there was no ack.
func (d *drama) redeliver(t *testing.T, undoing bool) {
	t.Helper()
	msg := d.message(undoing)
	msg.Metadata.Set(outbox.PropertyRedelivered, "true")
	handle(t, d.c, msg)
}

// ended waits until the process has ended, and may have given its delivery back.
func (d *drama) ended(t *testing.T, v *faulttest.Victim) {
	t.Helper()
	if code := v.Ended(); code != 0 && code != exitNacked {
		t.Fatalf("exit code %d: %s", code, v.Said())
	}
}

// takeOver takes the parked message as soon as its lease has run out, unless it is
// dealt with by then.
func (d *drama) takeOver(t *testing.T) {
	t.Helper()
	faulttest.Await(t, "the lease runs out", func() bool { return runParkedOnce(t, d.c) > 0 || d.parked(t) == "" }, func() string { return d.doubts(t) })
}

// A sceneOfEffect is all that the test can see of a step.
type sceneOfEffect struct {
	Effects  string // the committed work of handlers
	Calls    string // the provider's effects / with how many different keys
	Receipts string // types of the messages in the outbox
	State    string // of the inbox row
	Parked   string // the parked messages
}

func (d *drama) look(t *testing.T) sceneOfEffect {
	t.Helper()
	return sceneOfEffect{
		Effects: d.effects(t), Calls: d.p.made(), Parked: d.doubts(t),
		Receipts: strings.Join(d.texts(t, "SELECT "+outboxsql.LoggedType+" FROM {schema}.outbox m ORDER BY id"), " "),
		State:    strings.Join(d.texts(t, "SELECT state FROM {schema}.inbox"), " "),
	}
}

// A process dies in every call: there are as many as MaxAttempts allows, and
// then a question.
func TestADeadlyEffectEndsWithItsBudget(t *testing.T) {
	t.Parallel()
	for _, honours := range []bool{true, false} {
		t.Run(fmt.Sprint("honours ", honours), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := newProvider(t, honours)
			env := []string{"SAGAMILL_TEST_PROVIDER=" + p.url, "SAGAMILL_FAILPOINTS=effect/before-call=kill"}
			if !honours {
				env = append(env, "SAGAMILL_TEST_VERIFY=1")
			}
			deaths := 0
			for i := range f.effectStep("", false).MaxAttempts + 3 {
				if i > 0 {
					env = append(env, "SAGAMILL_TEST_PARKED=1")
				}
				if child(t, f, env...) {
					deaths++
				}
				f.pass(t)
			}
			want := stored{Row: "dead 5 0", Parked: "dead attempts-exhausted 5?", Calls: " / 0"}
			if !honours {
				want.Parked = "dead attempts-exhausted 5" // it was asked
			}
			compareStored(t, want, stored{Row: f.row(t), Parked: f.doubts(t), Calls: p.made()})
			if deaths != 5 {
				t.Errorf("the effect killed %d processes, want 5", deaths)
			}
		})
	}
}
