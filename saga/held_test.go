package saga_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// failingOnce is a participant's step whose action ends by fail until mended is set.
func (p *place) failingOnce(name string, mended *atomic.Bool, fail func(tx pgx.Tx, emit consumer.Emit) error) consumer.Step {
	step := p.booking(name)
	action := step.Action
	step.Action = consumer.On(action.Topic, func(ctx context.Context, tx pgx.Tx, in consumer.Message[request], emit consumer.Emit) error {
		if !mended.Load() {
			return fail(tx, emit)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".effect (key, what) VALUES ($1, $2)", in.Key, name); err != nil {
			return err
		}
		return saga.Done(emit, in.Delivery, answer{Number: name})
	})
	return step
}

// redriveAll redrives all dead letters of participants.
func (p *place) redriveAll() {
	p.t.Helper()
	letters, err := operator.NewDeadLetters(p.db, operator.Inbox, &operator.Options{Schema: p.schema})
	if err == nil {
		_, err = letters.Redrive(p.t.Context(), operator.Filter{}, nil)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// A step that a participant has parked for a person compensates nothing. The saga waits, says for what, and goes on
// with the answer to the redriven message.
func TestASagaWaitsForAPersonAtAParticipant(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	hotel := book("hotel")
	hotel.OnDeadLetter = saga.Undo // is for those that nobody asked for
	d := saga.Must(saga.Define("trip", 1, book("flight"), hotel))
	p.orchestrate(nil, d)
	var approved atomic.Bool
	p.participate(p.booking("flight"), p.failingOnce("hotel", &approved, func(pgx.Tx, consumer.Emit) error {
		return consumer.Park(errors.New("over the limit"))
	}))
	start(p, d, "k", trip{Item: "x"})
	reason := func() (reason string) {
		if err := p.db.QueryRow(t.Context(), "SELECT reason FROM "+p.schema+".saga WHERE key = 'k'").Scan(&reason); err != nil {
			t.Fatal(err)
		}
		return reason
	}
	p.await("the saga says what it waits for", func() bool { return reason() != "" })
	if got := reason(); got != "step hotel: dead letter, parked: over the limit" || p.status("k") != saga.StatusRunning {
		t.Errorf("the saga is %s, reason %q", p.status("k"), got)
	}
	approved.Store(true)
	p.redriveAll()
	p.until("k", saga.StatusCompleted)
	if got := p.effects("k"); got != "[flight hotel]" {
		t.Errorf("effects %s", got)
	}
	if got := reason(); got != "" {
		t.Errorf("at its end the reason is %q", got)
	}
}

// A dead letter of a participant decides nothing: the saga waits however long, the branch beside it goes on, and a redrive
// leads forward. Nothing is undone.
func TestADeadLetterWaits(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	both := saga.Must(saga.Define("trip", 1, saga.Step[trip]{Name: "both", All: []saga.Step[trip]{
		book("hotel"), {Name: "way", Seq: []saga.Step[trip]{book("flight"), book("car")}},
	}}))
	mute := saga.Must(saga.Define("mute", 1, book("mute")))
	p.silence("mute.book")
	o := p.orchestrate(&saga.Options{Patience: time.Second, HousekeepPoll: 20 * time.Millisecond}, both, mute)
	var mended atomic.Bool
	p.participate(p.booking("flight"), p.booking("car"), p.failingOnce("hotel", &mended, func(pgx.Tx, consumer.Emit) error {
		return consumer.Terminal(errors.New("503"))
	}))
	start(p, both, "k", trip{Item: "x"})
	p.await("the branch beside the dead letter has gone on", func() bool { return p.effects("k") == "[flight car]" })
	p.await("the saga is held", func() bool {
		stats, err := o.Stats(t.Context())
		return err == nil && stats.Held == 1 && stats.OldestHeld > 0
	})
	start(p, mute, "later", trip{})
	p.until("later", saga.StatusStuck) // the patience with the dead letter would be over, too
	if p.status("k") != saga.StatusRunning {
		t.Errorf("the saga is %s, want %s", p.status("k"), saga.StatusRunning)
	}
	mended.Store(true)
	p.redriveAll()
	p.until("k", saga.StatusCompleted)
	if got := p.effects("k"); got != "[flight car hotel]" {
		t.Errorf("effects %s", got)
	}
}

// A deadline passes for a dead letter as for any reply. It compensates, or the saga goes on waiting.
func TestADeadLetterWhoseDeadlinePasses(t *testing.T) {
	t.Parallel()
	for policy, want := range map[saga.Policy]string{saga.Undo: "[flight no flight]", saga.Wait: "[flight hotel]"} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			hotel := book("hotel")
			hotel.Deadline, hotel.OnDeadline = time.Second, policy
			d := saga.Must(saga.Define("trip", 1, book("flight"), hotel))
			p.orchestrate(&saga.Options{TimerPoll: soon}, d)
			var mended atomic.Bool
			step := p.failingOnce("hotel", &mended, func(pgx.Tx, consumer.Emit) error { return consumer.Terminal(errors.New("503")) })
			step.CancelParked = true
			p.participate(p.booking("flight"), step)
			start(p, d, "k", trip{Item: "x"})
			if policy == saga.Undo {
				reason := p.until("k", saga.StatusCompensated)
				if want := "step hotel: dead letter, terminal: 503, no reply within 1s"; reason != want {
					t.Errorf("reason %q, want %q", reason, want)
				}
			} else {
				p.untilSQL("k", "reason = 'step hotel: dead letter, terminal: 503, no reply within 1s'")
				mended.Store(true)
				p.redriveAll()
				p.until("k", saga.StatusCompleted)
			}
			if got := p.effects("k"); got != want {
				t.Errorf("effects %s, want %s", got, want)
			}
		})
	}
}

// A step whose Effect is known not to have happened is cancelled with the saga, and says why it had failed. The provider
// is not called again, for the charge or for its refund.
func TestACancelledSagaLeavesOutWhatHasNotHappened(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	d.orchestrate(def)
	var calls atomic.Int32
	call := func(context.Context, consumer.Message[request], string) (answer, error) {
		calls.Add(1)
		return answer{}, consumer.NotDone(errors.New("status 503"))
	}
	record := func(_ context.Context, _ pgx.Tx, in consumer.Message[request], a answer, emit consumer.Emit) error {
		return saga.Done(emit, in.Delivery, a)
	}
	hotel := d.booking("hotel")
	hotel.Action, hotel.RetryBase, hotel.RetryCap = consumer.Effect("hotel.book", call, nil, record), time.Hour, time.Hour
	d.participate(d.booking("flight"), hotel)
	start(d.place, def, "k", trip{Item: "x"})
	d.await("the call has failed", func() bool {
		var failed bool
		err := d.db.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+d.schema+".parked WHERE not_done)").Scan(&failed)
		return err == nil && failed
	})
	d.must("k", operator.VerbCancel, "")
	d.until("k", saga.StatusCompensated)
	got := d.get("k")
	if s := got.Steps[1]; s.State != operator.StepUndone || !s.NotDone || s.Reason != "status 503" {
		t.Errorf("step %s is %s, nothing %t, reason %q", s.Name, s.State, s.NotDone, s.Reason)
	}
	if s := got.Steps[0]; s.NotDone {
		t.Errorf("step %s is said not to have happened", s.Name)
	}
	if effects := d.effects("k"); effects != "[flight no flight]" || calls.Load() != 1 {
		t.Errorf("effects %s after %d calls", effects, calls.Load())
	}
}

// A message that the outbox refuses is a mistake, and no outcome of the business: the step is stuck, nothing is
// compensated, and after the mend a redrive completes the saga.
func TestAnInvalidMessageCompensatesNothing(t *testing.T) {
	t.Parallel()
	invalid := outbox.Message{Topic: "mail", Step: "mail", N: strings.Repeat("n", 65)}
	for name, fail := range map[string]func(p *place) func(tx pgx.Tx, emit consumer.Emit) error{
		"emitted": func(*place) func(pgx.Tx, consumer.Emit) error {
			return func(_ pgx.Tx, emit consumer.Emit) error { emit(invalid); return nil }
		},
		"written": func(p *place) func(pgx.Tx, consumer.Emit) error {
			writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: p.schema})
			if err != nil {
				p.t.Fatal(err)
			}
			m := invalid
			m.Scope, m.Key = "tenant", "k"
			return func(tx pgx.Tx, _ consumer.Emit) error { return writer.Write(p.ctx, tx, m) }
		},
		"no JSON": func(*place) func(pgx.Tx, consumer.Emit) error {
			return func(_ pgx.Tx, emit consumer.Emit) error { emit.JSON("mail", "mail", func() {}); return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
			p.orchestrate(nil, d)
			var mended atomic.Bool
			p.participate(p.booking("flight"), p.failingOnce("hotel", &mended, fail(p)))
			start(p, d, "k", trip{Item: "x"})
			if reason := p.until("k", saga.StatusStuck); !strings.HasPrefix(reason, "step hotel: dead letter, emit-invalid: ") {
				t.Errorf("reason %q", reason)
			}
			mended.Store(true)
			p.redriveAll()
			p.until("k", saga.StatusCompleted)
			if got := p.effects("k"); got != "[flight hotel]" {
				t.Errorf("effects %s", got)
			}
		})
	}
}

// A Local whose message is refused is stuck too; at the start of a saga the caller gets the error, and there is no saga.
func TestAnInvalidMessageOfALocalCompensatesNothing(t *testing.T) {
	t.Parallel()
	var mended atomic.Bool
	mail := saga.Step[trip]{Name: "mail", Do: saga.Local(func(_ context.Context, _ pgx.Tx, turn saga.Turn, _ *trip) error {
		m := outbox.Message{Topic: "mail", Step: "mail"}
		if !mended.Load() {
			m.N = "no number"
		}
		turn.Emit(m)
		return nil
	})}
	p := newPlace(t)
	behind, first := saga.Must(saga.Define("behind", 1, book("flight"), mail)), saga.Must(saga.Define("first", 1, mail, book("flight")))
	p.orchestrate(nil, behind, first)
	p.participate(p.booking("flight"))
	p.silence("mail")
	start(p, behind, "k", trip{Item: "x"})
	if reason := p.until("k", saga.StatusStuck); !strings.HasPrefix(reason, "step mail: outbox: invalid message: ") {
		t.Errorf("reason %q", reason)
	}
	starter, err := saga.NewStarter(first, &saga.StarterOptions{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), p.db, func(tx pgx.Tx) error {
		_, err := starter.Start(t.Context(), tx, saga.ID{Scope: "tenant", Key: "first"}, trip{Item: "x"})
		return err
	})
	if !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("Start: %v", err)
	}
	mended.Store(true)
	instances, err := operator.NewInstances(p.db, &operator.Options{Schema: p.schema})
	if err == nil {
		_, err = instances.Decide(t.Context(), saga.Address{Scope: "tenant", Key: "k"}, operator.Decision{Verb: operator.VerbRetry, Step: "mail", By: "tester", Why: "mended"})
	}
	if err != nil {
		t.Fatal(err)
	}
	p.until("k", saga.StatusCompleted)
}

// A decision that is made outside of the handler has a Delivery that was rebuilt from stored fields. Rejected answers with
// it.
func TestRejectedWithARebuiltDelivery(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	d := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	p.orchestrate(nil, d)
	stored := make(chan consumer.Delivery, 1)
	hotel := p.booking("hotel")
	hotel.Action = consumer.On("hotel.book", func(_ context.Context, _ pgx.Tx, in consumer.Message[request], _ consumer.Emit) error {
		stored <- consumer.Delivery{Scope: in.Scope, Key: in.Key, N: in.N, Step: in.Step, Incarnation: in.Incarnation, Metadata: in.Metadata}
		return nil
	})
	p.participate(p.booking("flight"), hotel)
	start(p, d, "k", trip{Item: "x"})
	rebuilt := <-stored
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), p.db, func(tx pgx.Tx) (err error) {
		emit := func(msgs ...outbox.Message) { err = writer.Write(t.Context(), tx, msgs...) }
		return errors.Join(saga.Rejected(emit, rebuilt, "not approved"), err)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.relay.Wake()
	if reason := p.until("k", saga.StatusCompensated); reason != "step hotel was rejected: not approved" {
		t.Errorf("reason %q", reason)
	}
}

// A list of instances says what each waits for, and at which step.
func TestAListSaysWhatInstancesWaitFor(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	never := saga.Step[trip]{Name: "never", Do: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return errors.New("not yet") }), Retry: saga.Retry{Attempts: 100, Base: time.Hour, Cap: time.Hour}}
	stuck := saga.Step[trip]{Name: "mail", Do: saga.Local(func(_ context.Context, _ pgx.Tx, turn saga.Turn, _ *trip) error {
		turn.Emit(outbox.Message{Topic: "mail", Step: "mail", N: "no number"})
		return nil
	})}
	inner := saga.Must(saga.Define("inner", 1, book("hotel")))
	sagas := map[string]*saga.Definition[trip]{
		"reply":        saga.Must(saga.Define("silent", 1, saga.Step[trip]{Name: "both", All: []saga.Step[trip]{book("silent"), book("mute")}})),
		"participant":  saga.Must(saga.Define("held", 1, book("hotel"))),
		"person":       saga.Must(saga.Define("broken", 1, book("flight"), stuck)),
		"next attempt": saga.Must(saga.Define("failing", 1, book("flight"), never)),
		"nested saga": saga.Must(saga.Define("outer", 1, saga.Step[trip]{Name: "inside", Do: saga.Nested(inner,
			func(s *trip) trip { return *s }, func(*trip, trip) {})})),
	}
	plans := []saga.Plan{inner}
	for _, d := range sagas {
		plans = append(plans, d)
	}
	p.orchestrate(nil, plans...)
	silent := p.broker.Subscriber("silent")
	for _, topic := range []string{"silent.book", "mute.book"} {
		if err := silent.SubscribeInitialize(topic); err != nil {
			t.Fatal(err)
		}
		p.drain(silent, topic)
	}
	p.participate(p.booking("flight"), p.failingOnce("hotel", &atomic.Bool{}, func(pgx.Tx, consumer.Emit) error { return consumer.Park(errors.New("over the limit")) }))
	for key, d := range sagas {
		start(p, d, key, trip{Item: "x"})
	}
	instances, err := operator.NewInstances(p.db, &operator.Options{Schema: p.schema})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"next attempt: never waits for next attempt", "nested saga: inside waits for nested saga", "nested saga: hotel waits for participant",
		"participant: hotel waits for participant", "person: mail waits for person", "reply: silent,mute waits for reply",
	}
	slices.Sort(want)
	var got []string
	p.await("all wait", func() bool {
		all, err := instances.List(t.Context(), operator.InstanceFilter{Live: true}, saga.Address{}, 100)
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, i := range all {
			got = append(got, fmt.Sprintf("%s: %s waits for %s", i.Key, i.Step, i.WaitsFor))
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
	if _, err := instances.Decide(t.Context(), saga.Address{Scope: "tenant", Key: "reply"}, operator.Decision{Verb: operator.VerbCancel, By: "tester", Why: "a test"}); err != nil {
		t.Fatal(err)
	}
	p.await("the cancelled one undoes", func() bool {
		all, err := instances.List(t.Context(), operator.InstanceFilter{Key: "reply"}, saga.Address{}, 1)
		return err == nil && len(all) == 1 && all[0].WaitsFor == operator.WaitsForReply && all[0].Status == saga.StatusCompensating
	})
}
