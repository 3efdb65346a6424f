package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

func never() bool { return false }

var outermost = saga.Address{Key: "k"}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	d.orchestrate(def)
	d.mute("flight", "hotel")
	start(d.place, def, "k", trip{Item: "x"})
	d.refused("k", operator.VerbResume, "", "not paused")
	d.must("k", operator.VerbPause, "")
	d.refused("k", operator.VerbPause, "", "paused already")
	d.open["flight"]()
	d.open["hotel"]()
	got := d.sees(outermost, "flight done, hotel to-come") // the reply is taken, and nothing follows
	if !got.Paused || got.Status != saga.StatusPaused || !got.DueAt.IsZero() || len(got.Next) != 0 {
		t.Errorf("paused: %v %s, due %s, next %q", got.Paused, got.Status, got.DueAt, got.Next)
	}
	if j := got.Journal; len(j) != 1 || j[0].Verb != operator.VerbPause || j[0].By != "ann" || j[0].Why != "it is a test" {
		t.Errorf("journal %+v", j)
	}
	d.must("k", operator.VerbResume, "")
	d.until("k", saga.StatusCompleted)
	if got := d.effects("k"); got != "[flight hotel]" {
		t.Errorf("effects %s", got)
	}
	d.refused("k", operator.VerbPause, "", "completed")
}

func TestCancel(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"), saga.Step[trip]{Name: "pay", Do: saga.Remote("pay.book", (*trip).request, (*trip).booked), Pivot: true}))
	d.orchestrate(def)
	d.mute("hotel", "pay")
	d.participate(d.booking("flight"))
	start(d.place, def, "k", trip{Item: "x"})
	got := d.sees(outermost, "flight done, hotel running, pay to-come")
	if len(got.Undo) != 2 || got.Undo[0][0] != "hotel" || got.Undo[1][0] != "flight" {
		t.Errorf("would undo %q (%s), want hotel and then flight", got.Undo, got.UndoNothing)
	}
	d.must("k", operator.VerbPause, "")
	d.must("k", operator.VerbCancel, "") // paused or not
	d.sees(outermost, "flight done, hotel undoing, pay never")
	d.refused("k", operator.VerbCancel, "", "compensating already")
	d.refused("k", operator.VerbCompensateTo, "flight", "compensating already")
	d.open["hotel"]()
	if reason := d.until("k", saga.StatusCompensated); reason != "cancelled: it is a test" {
		t.Errorf("reason %q", reason)
	}
	if got := d.effects("k"); !strings.HasSuffix(got, "no flight]") {
		t.Errorf("effects %s, want the flight undone last", got)
	}
	start(d.place, def, "k2", trip{Item: "x"})
	got = d.sees(saga.Address{Key: "k2"}, "flight done, hotel done, pay running")
	if len(got.Undo) != 0 || !strings.Contains(got.UndoNothing, "the pivot, pay, has been sent") {
		t.Errorf("behind the pivot it would undo %q (%s)", got.Undo, got.UndoNothing)
	}
	d.refused("k2", operator.VerbCancel, "", "the pivot, pay, has been sent")
	d.refused("k2", operator.VerbCompensateTo, "flight", "the pivot, pay, has been sent")
}

func TestCompensateTo(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), saga.Step[trip]{Name: "stay", All: []saga.Step[trip]{book("hotel"), book("spa")}}, book("car")))
	d.orchestrate(def)
	d.mute("car")
	d.participate(d.booking("flight"), d.booking("hotel"), d.booking("spa"))
	start(d.place, def, "k", trip{Item: "x"})
	d.sees(outermost, "flight done, hotel done, spa done, car running")
	d.refused("k", operator.VerbCompensateTo, "hotel", "several in parallel")
	d.refused("k", operator.VerbCompensateTo, "car", "not done itself")
	d.refused("k", operator.VerbCompensateTo, "bus", `no step "bus"`)
	d.must("k", operator.VerbCompensateTo, "flight")
	d.sees(outermost, "flight done, hotel done, spa done, car undoing") // and there it stays
	d.refused("k", operator.VerbCompensateTo, "flight", "compensating already")
	d.open["car"]()
	d.until("k", saga.StatusPaused)
	if got := d.effects("k"); strings.Contains(got, "no flight") || !strings.Contains(got, "no hotel") || !strings.Contains(got, "no spa") {
		t.Errorf("effects %s, want all undone but the flight", got)
	}
	d.refused("k", operator.VerbCompensateTo, "flight", "nothing after step flight has begun")
	d.must("k", operator.VerbResume, "")
	d.until("k", saga.StatusCompleted)
	got := d.get("k")
	if n := len(strings.Fields(d.effects("k"))); got.Steps[2].Attempt != 2 || n < 9 {
		t.Errorf("attempt %d, effects %s; want hotel, spa and car anew", got.Steps[2].Attempt, d.effects("k"))
	}
}

func TestSkip(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"), book("car")))
	d.orchestrate(def)
	d.mute("flight", "hotel", "car")
	start(d.place, def, "k", trip{Item: "x"})
	d.refused("k", operator.VerbSkip, "hotel", "has not begun")
	if _, err := d.decideAt(outermost, operator.Decision{Verb: operator.VerbSkip, Step: "flight", Result: json.RawMessage(`{"number":"by phone"}`)}); err != nil {
		t.Fatal(err)
	}
	d.sees(outermost, "flight done, hotel running, car to-come")
	d.refused("k", operator.VerbSkip, "flight", "is done")
	d.must("k", operator.VerbSkip, "hotel")
	got := d.sees(outermost, "flight done, hotel done, car running")
	if want := `{"item":"x","numbers":["by phone"]}`; string(got.State) != want || !got.Steps[0].Override {
		t.Errorf("state %s, want %s", got.State, want)
	}
	ended, err := d.decide("k", operator.VerbSkip, "car") // nothing is left: it has ended then and there
	if err != nil || ended.Status != saga.StatusCompleted || ended.EndedAt.IsZero() || !ended.DueAt.IsZero() {
		t.Errorf("the last step skipped: %+v, %v", ended, err)
	}
	d.refused("k", operator.VerbSkip, "car", "completed")
}

func TestSkipWithAResultThatDoesNotFit(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight")))
	d.orchestrate(def)
	d.mute("flight")
	start(d.place, def, "k", trip{Item: "x"})
	if _, err := d.decideAt(outermost, operator.Decision{Verb: operator.VerbSkip, Step: "flight", Result: json.RawMessage(`[1]`)}); err != nil {
		t.Fatal(err)
	}
	got := d.sees(outermost, "flight stuck")
	if s := got.Steps[0]; got.Status != saga.StatusStuck || !s.InDoubt || !strings.Contains(s.Reason, "result of step flight") {
		t.Errorf("%s: %+v, want it stuck for its result", got.Status, s)
	}
	if _, err := d.decideAt(outermost, operator.Decision{Verb: operator.VerbSkip, Step: "flight", Result: json.RawMessage(`null`)}); err != nil {
		t.Fatal(err)
	}
	d.until("k", saga.StatusCompleted)
}

func TestSkipOfWhatCannotBeUndone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel"), book("car")))
	d.orchestrate(def)
	d.participate(d.booking("flight"), d.breaking("hotel", never), d.booking("car"))
	start(d.place, def, "k", trip{Item: "no car"})
	got := d.sees(outermost, "flight done, hotel undo-stuck, car rejected")
	if want := "compensation of step hotel: dead letter, terminal: no such booking"; !strings.HasPrefix(got.Reason, want) || len(got.Undo) != 2 {
		t.Errorf("%s, would undo %q; want %s", got.Reason, got.Undo, want)
	}
	if _, err := d.decideAt(outermost, operator.Decision{Verb: operator.VerbSkip, Step: "hotel", Result: json.RawMessage(`1`)}); !errors.Is(err, operator.ErrRefused) {
		t.Errorf("skip with a result: %v", err)
	}
	d.refused("k", operator.VerbReject, "hotel", "is undo-stuck")
	d.refused("k", operator.VerbSkip, "car", "is rejected")
	d.must("k", operator.VerbSkip, "hotel")
	d.until("k", saga.StatusCompensated)
	if got := d.effects("k"); got != "[flight hotel no flight]" {
		t.Errorf("effects %s", got)
	}
}

func TestReject(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	pay := forward("pay", 0)
	pay.Pivot = true
	def := saga.Must(saga.Define("trip", 1, book("flight"), pay, forward("ticket", 2)))
	d.orchestrate(def)
	d.mute("pay", "ticket")
	d.participate(d.booking("flight"))
	start(d.place, def, "k", trip{Item: "x"})
	d.sees(outermost, "flight done, pay running, ticket to-come")
	d.refused("k", operator.VerbReject, "ticket", "comes after the pivot")
	d.refused("k", operator.VerbReject, "flight", "is done")
	d.must("k", operator.VerbReject, "pay")
	if reason := d.until("k", saga.StatusCompensated); reason != "step pay was rejected: it is a test" {
		t.Errorf("reason %q", reason)
	}
	if got := d.effects("k"); got != "[flight no flight]" {
		t.Errorf("effects %s", got)
	}
	d.open["pay"]() // it comes late, and nothing follows
	start(d.place, def, "k2", trip{Item: "x"})
	d.sees(saga.Address{Key: "k2"}, "flight done, pay done, ticket running")
	d.refused("k2", operator.VerbReject, "ticket", "comes after the pivot")
}

func TestRetryOfAStepThatRuns(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("flight"), book("hotel")))
	d.orchestrate(def)
	d.mute("flight", "hotel")
	start(d.place, def, "k", trip{Item: "x"})
	d.refused("k", operator.VerbRetry, "", "no step is stuck")
	d.refused("k", operator.VerbRetry, "hotel", "has not begun")
	d.must("k", operator.VerbRetry, "flight")
	d.sent("flight.book", 2)
	d.open["flight"]()
	d.open["hotel"]()
	d.until("k", saga.StatusCompleted)
	if got := d.effects("k"); got != "[flight hotel]" {
		t.Errorf("effects %s, want the flight once", got)
	}
}

// The transaction of a timer has the limits of a consumer's transaction.
func TestTransactionsOfTimersAreLimited(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	limits := make(chan string, 1)
	d := saga.Must(saga.Define("trip", 1, saga.Step[trip]{
		Name: "note", Retry: saga.Retry{Attempts: 10, Base: 1, Cap: 1},
		Do: saga.Local(func(ctx context.Context, tx pgx.Tx, _ saga.Turn, _ *trip) error {
			var limit string
			err := tx.QueryRow(ctx, "SELECT current_setting('idle_in_transaction_session_timeout') || ' ' || current_setting('client_connection_check_interval') || ' ' || current_setting('tcp_keepalives_idle')").Scan(&limit)
			if err != nil || strings.HasPrefix(limit, "0 ") { // the transaction that starts the saga is the caller's
				return errors.New("not in a timer")
			}
			limits <- limit
			return nil
		}),
	}))
	p.orchestrate(&saga.Options{Consumer: consumer.Options{ConnectionCheck: 250 * time.Millisecond}}, d)
	start(p, d, "k", trip{Item: "x"})
	p.until("k", saga.StatusCompleted)
	if got, want := <-limits, "30s 250ms 2"; got != want {
		t.Errorf("limits %s, want %s", got, want)
	}
}

// A local step that waits for an hour is tried at once, and one that is stuck has all its attempts again.
func TestRetryOfALocalStep(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var mended atomic.Int32
	local := saga.Step[trip]{
		Name: "note", Retry: saga.Retry{Attempts: 2, Base: time.Hour}, Undo: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return nil }),
		Do: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error {
			if mended.Load() == 0 {
				return errors.New("not now")
			}
			return nil
		}),
	}
	pay := forward("pay", 0)
	pay.Pivot = true
	after := local
	after.Name, after.Undo = "after", saga.Action[trip]{}
	def := saga.Must(saga.Define("trip", 1, local, pay, after))
	d.orchestrate(def)
	d.participate(d.booking("pay"))
	start(d.place, def, "k", trip{Item: "x"})
	got := d.sees(outermost, "note waiting, pay to-come, after to-come")
	if s := got.Steps[0]; s.Reason != "not now" || s.Due.Sub(got.StartedAt) < 59*time.Minute {
		t.Errorf("%+v", s)
	}
	mended.Store(1)
	d.must("k", operator.VerbRetry, "note")
	d.until("k", saga.StatusCompleted)

	mended.Store(0)
	start(d.place, def, "k2", trip{Item: "x"})
	d.sees(saga.Address{Key: "k2"}, "note waiting, pay to-come, after to-come")
	d.must("k2", operator.VerbSkip, "note")
	d.sees(saga.Address{Key: "k2"}, "note done, pay done, after waiting")
	d.refused("k2", operator.VerbReject, "after", "comes after the pivot")
	d.must("k2", operator.VerbPause, "")
	d.must("k2", operator.VerbRetry, "") // takes effect when it is resumed: otherwise the next attempt is due in an hour
	mended.Store(1)                      // before the orchestrator may try the step again
	d.must("k2", operator.VerbResume, "")
	d.until("k2", saga.StatusCompleted)
}

func TestRetryOfWhatIsStuck(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	pay := forward("pay", 0)
	pay.Pivot, pay.Deadline = true, 50*time.Millisecond
	def := saga.Must(saga.Define("trip", 1, pay, forward("ticket", 2)))
	d.orchestrate(def)
	d.mute("pay")
	start(d.place, def, "k", trip{Item: "x"})
	got := d.sees(outermost, "pay stuck, ticket to-come")
	if s := got.Steps[0]; !s.InDoubt || got.Status != saga.StatusStuck || got.Reason != "step pay: no reply within 50ms" {
		t.Errorf("%s, %s, %+v", got.Status, got.Reason, s)
	}
	d.must("k", operator.VerbRetry, "") // in doubt: the same command again, of which the first was not heard of
	d.sent("pay.book", 2)
	d.marked("pay.book", "false true")
	d.sees(outermost, "pay stuck, ticket to-come")
	d.participate(d.booking("ticket"))
	d.open["pay"]() // the late reply frees it
	d.until("k", saga.StatusCompleted)
	if got := d.effects("k"); got != "[pay ticket]" {
		t.Errorf("effects %s", got)
	}

	start(d.place, def, "k2", trip{Item: "no ticket"})
	got = d.sees(saga.Address{Key: "k2"}, "pay done, ticket stuck")
	if s := got.Steps[1]; s.InDoubt || s.Attempt != 2 {
		t.Errorf("%+v, want it stuck after two attempts, of which none has done anything", s)
	}
	d.must("k2", operator.VerbRetry, "ticket")
	d.sees(saga.Address{Key: "k2"}, "pay done, ticket stuck")
	if got := d.get("k2"); got.Steps[1].Attempt != 4 {
		t.Errorf("attempt %d, want two more", got.Steps[1].Attempt)
	}
	d.must("k2", operator.VerbSkip, "ticket")
	d.until("k2", saga.StatusCompleted)
}

// Sending a compensation again is no use while the participant has it as a dead
// letter: that is redriven, and its reply frees the saga.
func TestRetryOfACompensation(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := saga.Must(saga.Define("trip", 1, book("hotel"), book("car")))
	d.orchestrate(def)
	var mended atomic.Bool
	hotel := d.breaking("hotel", mended.Load)
	d.participate(hotel, d.booking("car"))
	start(d.place, def, "k", trip{Item: "no car"})
	d.sees(outermost, "hotel undo-stuck, car rejected")
	d.refused("k", operator.VerbRetry, "", "step hotel is a dead letter at the participant")
	d.must("k", operator.VerbRetry, "hotel")
	d.sees(outermost, "hotel undoing, car rejected")
	mended.Store(true)
	d.redriveAll()
	d.until("k", saga.StatusCompensated)
	if got := d.effects("k"); got != "[hotel no hotel]" {
		t.Errorf("effects %s", got)
	}
}

// orchestrateDelivery runs an orchestrator of a saga with the pivot pay, and then ticket and mail in parallel.
func (d *desk) orchestrateDelivery() *saga.Definition[trip] {
	pay := forward("pay", 0)
	pay.Pivot = true
	def := saga.Must(saga.Define("trip", 1, pay, saga.Step[trip]{Name: "send", All: []saga.Step[trip]{forward("ticket", 2), forward("mail", 2)}}))
	d.orchestrate(def)
	return def
}

// A retry of all steps leaves a step alone whose command is a dead letter: the participant would ignore a copy, and the saga
// would look as if it ran.
func TestRetryLeavesDeadLettersAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := d.orchestrateDelivery()
	var mended atomic.Bool
	mail := d.step("mail", func(bool) error {
		if !mended.Load() {
			return consumer.Terminal(errors.New("no such table"))
		}
		return nil
	})
	d.participate(d.booking("pay"), d.booking("ticket"), mail)
	start(d.place, def, "k", trip{Item: "no ticket"})
	d.sees(outermost, "pay done, ticket stuck, mail held")
	d.must("k", operator.VerbRetry, "")
	d.sent("ticket.book", 4)
	got := d.sees(outermost, "pay done, ticket stuck, mail held")
	if s := got.Steps[len(got.Steps)-1]; s.Name != "mail" || s.Attempt != 1 || !strings.HasPrefix(s.Reason, "dead letter, terminal") || got.Status != saga.StatusStuck {
		t.Errorf("%s, mail %+v, want it as it was", got.Status, s)
	}
	commands := 0
	if err := d.db.QueryRow(t.Context(), "SELECT count(*) FROM "+d.schema+".outbox WHERE topic = 'mail.book'").Scan(&commands); commands != 1 {
		t.Errorf("%d commands to mail, %v; want one", commands, err)
	}
	d.must("k", operator.VerbSkip, "ticket")
	d.refused("k", operator.VerbRetry, "", "must be redriven there")
	ofMany := operator.Decision{Verb: operator.VerbRetry, Step: "mail", By: "ann", Why: "fixed"}
	if did, err := d.n.DecideAll(t.Context(), operator.InstanceFilter{}, ofMany, nil); err != nil || did.Decided != 0 ||
		did.Refused["the message of step mail is a dead letter at the participant, which must be redriven there; if the participant has lost it, retry this step of this saga alone"] != 1 {
		t.Errorf("a retry of step mail of all: %+v, %v; want it refused", did, err)
	}
	mended.Store(true)
	d.redriveAll()
	d.until("k", saga.StatusCompleted)
	if got := d.effects("k"); got != "[pay mail]" {
		t.Errorf("effects %s", got)
	}
}

// A fault does not change this: its retry leaves the dead letter alone too.
func TestRetryOfAFaultBesideADeadLetter(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	def := d.orchestrateDelivery()
	d.mute("ticket")
	d.participate(d.booking("pay"), d.step("mail", func(bool) error { return consumer.Terminal(errors.New("no such table")) }))
	start(d.place, def, "k", trip{Item: "x"})
	d.sees(outermost, "pay done, ticket running, mail held")
	d.exec(`UPDATE {schema}.saga SET state = '[]', due_at = clock_timestamp()`)
	d.faulty("k")
	d.exec(`UPDATE {schema}.saga SET state = '{"item":"x"}'`)
	d.must("k", operator.VerbRetry, "")
	if got := d.get("k"); got.Fault != "" || states(got) != "pay done, ticket running, mail held" {
		t.Errorf("fault %q, %s", got.Fault, states(got))
	}
	d.open["ticket"]()
	d.sees(outermost, "pay done, ticket done, mail held")
}

// A participant that could not read a command has recorded nothing, so that a copy runs.
func TestRetryOfACommandThatCouldNotBeRead(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	pay := forward("pay", 0)
	pay.Pivot = true
	def := saga.Must(saga.Define("trip", 1, pay))
	d.orchestrate(def)
	pays := d.booking("pay")
	pays.Action = saga.On("pay.book", func(context.Context, pgx.Tx, consumer.Message[newRequest]) (answer, error) {
		return answer{Number: "pay"}, nil
	})
	d.participate(pays)
	start(d.place, def, "k", trip{Item: "x"})
	d.sees(outermost, "pay held")
	knowsNewRequests.Store(true)
	d.must("k", operator.VerbRetry, "")
	d.until("k", saga.StatusCompleted)
}

// A newRequest cannot be decoded until knowsNewRequests, which only one test uses.
type newRequest struct{ Item string }

var knowsNewRequests atomic.Bool

func (r *newRequest) UnmarshalJSON(text []byte) error {
	if !knowsNewRequests.Load() {
		return errors.New("a field of a later release")
	}
	type plain newRequest
	return json.Unmarshal(text, (*plain)(r))
}

// While a person decides at the participant, a deadline does not hide the dead letter.
func TestRetryOfAParkedStepWhoseDeadlinePassed(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	pay := forward("pay", 0)
	pay.Pivot, pay.Deadline = true, time.Second
	def := saga.Must(saga.Define("trip", 1, pay))
	d.orchestrate(def)
	d.participate(d.step("pay", func(bool) error { return consumer.Park(errors.New("ask ann")) }))
	start(d.place, def, "k", trip{Item: "x"})
	got := d.sees(outermost, "pay stuck")
	if want := "dead letter, parked: ask ann, no reply within 1s"; got.Steps[0].Reason != want {
		t.Errorf("reason %q, want %q", got.Steps[0].Reason, want)
	}
	d.refused("k", operator.VerbRetry, "", "must be redriven there")
}

// What no orchestrator could go on with has no step that is stuck: it is tried again as a whole.
func TestRetryOfAFault(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	slow := book("flight")
	slow.Deadline = time.Hour
	def := saga.Must(saga.Define("trip", 1, slow, book("hotel")))
	d.orchestrate(def)
	d.mute("flight", "hotel")
	start(d.place, def, "k", trip{Item: "x"})
	d.exec(`UPDATE {schema}.saga SET state = '[]', due_at = clock_timestamp()`)
	d.until("k", saga.StatusStuck)
	got := d.get("k")
	if !strings.Contains(got.Fault, "does not fit the definition") || got.DueAt != (time.Time{}) || got.Tries == 0 {
		t.Errorf("fault %q, due %s, %d tries", got.Fault, got.DueAt, got.Tries)
	}
	d.exec(`UPDATE {schema}.saga SET state = '{"item":"x"}'`)
	d.must("k", operator.VerbRetry, "")
	if got := d.get("k"); got.Fault != "" || got.Status != saga.StatusRunning {
		t.Errorf("retried: %s, fault %q", got.Status, got.Fault)
	}
	d.open["flight"]()
	d.open["hotel"]()
	d.until("k", saga.StatusCompleted)
}

// What a local step's error says is any text, and the table holds not all of that.
func TestALocalStepIsStuckForAnyReason(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	pay := forward("pay", 0)
	pay.Pivot = true
	broken := saga.Step[trip]{
		Name: "note", Retry: saga.Retry{Attempts: 2, Base: time.Millisecond},
		Do: saga.Local(func(context.Context, pgx.Tx, saga.Turn, *trip) error { return errors.New("no\x00 \xff") }),
	}
	def := saga.Must(saga.Define("trip", 1, pay, broken))
	d.orchestrate(def)
	d.participate(d.booking("pay"))
	start(d.place, def, "k", trip{Item: "x"})
	if reason := d.until("k", saga.StatusStuck); reason != "step note: no\ufffd \ufffd" {
		t.Errorf("reason %q", reason)
	}
	if got := d.get("k"); got.Fault != "" {
		t.Errorf("that it is stuck counts as a fault: %q", got.Fault)
	}
}
