package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// answering returns s with an Unhandled that emits what it was told, in words.
func answering(s Step) Step {
	s.Unhandled = func(u Unhandled, emit Emit) {
		what := []any{map[bool]string{false: "act", true: "undo"}[u.Undo], u.Key, u.Step, u.Attempt, u.Dead, u.Reason}
		payload, err := json.Marshal(strings.TrimSpace(fmt.Sprintln(what...)))
		if err != nil {
			panic(err)
		}
		emit(outbox.Message{Topic: "answer", Step: "orchestrate", Payload: payload})
	}
	return s
}

// emitted returns the payloads of what was put into the outbox for topic.
func (f *fixture) emitted(t *testing.T, topic string) []string {
	t.Helper()
	return f.texts(t, `SELECT convert_from(payload, 'UTF8')::json #>> '{}' FROM {schema}.outbox WHERE topic = $1 ORDER BY id`, topic)
}

// giving is a handler that emits something and ends with err.
func giving(err error) Handler[payment] {
	return func(_ context.Context, _ pgx.Tx, _ Message[payment], emit Emit) error {
		emit(outbox.Message{Topic: "paid", Step: "ship", Payload: []byte("{}")})
		return err
	}
}

func again(msg *message.Message) *message.Message {
	msg.Metadata.Set(outbox.PropertyRedelivered, "true")
	return msg
}

// ends are how messages of a step end, and what is answered.
var ends = map[string]struct {
	err, undoErr error // of the handlers
	cancelParked bool
	before       string // a statement
	arrive       []*message.Message
	then         string // a statement, after which what is parked runs
	want         []string
}{
	"success":   {arrive: []*message.Message{act("k"), undo("k")}},
	"failure":   {err: errors.New("no"), arrive: []*message.Message{act("k")}},
	"tombstone": {arrive: []*message.Message{undo("k")}, want: []string{"undo k process-payment 0 false"}},
	"tombstone, twice": {
		arrive: []*message.Message{undo("k"), undo("k"), act("k")}, want: []string{"undo k process-payment 0 false"},
	},
	"tombstone of a row that was counted": {
		before: "INSERT INTO {schema}.inbox (scope, key, step, n, state) VALUES ('tenant', 'k', 'process-payment', '', 'open')",
		arrive: []*message.Message{undo("k")}, want: []string{"undo k process-payment 0 false"},
	},
	"cancelled": {
		err: errors.New("no"), cancelParked: true,
		arrive: []*message.Message{act("k"), undo("k")}, want: []string{"undo k process-payment 0 false failed"},
	},
	"overtaken": {
		arrive: []*message.Message{undo("k"), again(act("k"))},
		want:   []string{"undo k process-payment 0 false", "act k process-payment 0 true superseded"},
	},
	"terminal, and nothing is known": {
		err: Terminal(errors.New("no")), arrive: []*message.Message{act("k"), undo("k"), undo("k")},
		want: []string{"act k process-payment 1 true terminal", "undo k process-payment 0 true action-dead", "undo k process-payment 0 true action-dead"},
	},
	"a person": {
		err: Park(errors.New("no")), arrive: []*message.Message{act("k")}, want: []string{"act k process-payment 0 true parked"},
	},
	"key reused": {
		arrive: []*message.Message{act("k"), newMessage("pay", "k", payment{7})}, want: []string{"act k process-payment 0 true key-reused"},
	},
	"too old": {
		before: "UPDATE {schema}.inbox_horizon SET swept_before = 'now'",
		arrive: []*message.Message{act("k"), act("k")}, want: []string{"act k process-payment 0 true too-old"},
	},
	"last attempt": {
		err: errors.New("no"), arrive: []*message.Message{act("k")}, then: "UPDATE {schema}.parked SET attempts = 9",
		want: []string{"act k process-payment 10 true attempts-exhausted"},
	},
	"died in its last attempt": {
		err: errors.New("no"), arrive: []*message.Message{act("k")}, then: "UPDATE {schema}.parked SET attempts = 10",
		want: []string{"act k process-payment 10 true attempts-exhausted"},
	},
	"not understood any more": {
		err: errors.New("no"), arrive: []*message.Message{act("k")}, then: "UPDATE {schema}.parked SET topic = 'gone'",
		want: []string{"act k process-payment 1 true type-unknown"},
	},
	"compensation not understood any more": {
		undoErr: errors.New("no"), arrive: []*message.Message{act("k"), undo("k")}, then: "UPDATE {schema}.parked SET topic = 'gone'",
		want: []string{"undo k process-payment 1 true type-unknown"},
	},
}

// What ends without its handler is answered once, by itself and in a batch,
// with nothing of what a failed handler has emitted.
func TestWhatEndsUnhandledIsAnswered(t *testing.T) {
	t.Parallel()
	for name, tt := range ends {
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", batch ", batch), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				woken := 0
				step := answering(f.step(giving(tt.err), giving(tt.undoErr)))
				step.CancelParked = tt.cancelParked
				c := f.consumer(t, Options{Wake: func() { woken++ }}, step)
				if tt.before != "" {
					f.exec(t, tt.before)
				}
				var msgs []*message.Message
				for _, msg := range tt.arrive {
					msgs = append(msgs, msg.Copy())
				}
				if batch {
					msgs = append(append([]*message.Message{undo("a")}, msgs...), undo("z"))
					settle(t, c, msgs...)
				} else {
					handle(t, c, msgs...)
				}
				if tt.then != "" {
					f.exec(t, tt.then)
					woken = 0
					runParkedOnce(t, c)
				}
				got := slices.DeleteFunc(f.emitted(t, "answer"), func(a string) bool { return batch && !strings.Contains(a, " k ") })
				if !slices.Equal(got, tt.want) {
					t.Errorf("answers %q, want %q; parked %q", got, tt.want, f.parked(t))
				}
				if paid := f.emitted(t, "paid"); len(paid) > 0 && tt.err != nil {
					t.Errorf("a handler that failed has emitted %q", paid)
				}
				if len(tt.want) > 0 && woken == 0 {
					t.Error("the relay was not woken")
				}
			})
		}
	}
}

// A message that cannot be read is answered if it is known whose it is; also when
// it is read again and still cannot be.
func TestWhatCannotBeReadIsAnswered(t *testing.T) {
	t.Parallel()
	changed := func(name, value string) *message.Message {
		msg := act("k")
		msg.Metadata.Set(name, value)
		return msg
	}
	const undecodable = "act k process-payment 0 true undecodable"
	for name, tt := range map[string]struct {
		msg    *message.Message
		change string
		want   []string
	}{
		"payload":         {saying(act("k"), "{"), "", []string{undecodable, undecodable}},
		"content type":    {changed(outbox.PropertyContentType, "text/xml"), "", []string{undecodable, undecodable}},
		"too large":       {saying(act("k"), strings.Repeat(" ", 101)), "", []string{"act k process-payment 0 true too-large", "act k process-payment 0 true too-large"}},
		"mended":          {saying(act("k"), "{"), ", payload = '{}'", []string{undecodable}},
		"ended a process": {saying(act("k"), "{"), ", attempts = 3", []string{undecodable, "act k process-payment 3 true attempts-exhausted"}},
		"compensation":    {saying(undo("k"), "{"), "", []string{"undo k process-payment 0 true undecodable", "undo k process-payment 0 true undecodable"}},
		"no key":          {changed(outbox.HeaderKey, ""), "", nil},
		"no scope":        {changed(outbox.HeaderScope, ""), "", nil},
		"unknown type":    {changed(outbox.PropertyType, "other"), "", nil},
		"too large, and no key": {
			saying(changed(outbox.HeaderKey, ""), strings.Repeat(" ", 101)), "", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			woken := 0
			c := f.consumer(t, Options{MaxPayload: 100, Wake: func() { woken++ }}, answering(f.step(f.effect("paid"), f.effect("refunded"))))
			topic := map[bool]string{true: "unpay", false: "pay"}[name == "compensation"]
			if err := c.Handle(t.Context(), topic, tt.msg); err != nil {
				t.Fatal(err)
			}
			f.sendRound(t, tt.change)
			runParkedOnce(t, c)
			if got := f.emitted(t, "answer"); !slices.Equal(got, tt.want) || woken != len(tt.want) {
				t.Errorf("answers %q after %d wakes, want %q; parked %q", got, woken, tt.want, f.parked(t))
			}
		})
	}
}

// A message that gets its identity only now turns out to be another's.
func TestAReusedKeyIsAnsweredWhenItIsNamed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, answering(f.step(f.failing(1, "paid", new(atomic.Int32)), nil)))
	handle(t, c, act("k"))
	f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity'")
	other := newMessage("pay", "k", payment{3})
	other.Metadata.Set(outbox.PropertyContentType, "text/xml")
	if err := c.Handle(t.Context(), "pay", other); err != nil {
		t.Fatal(err)
	}
	f.exec(t, `UPDATE {schema}.parked SET state = 'retrying', due_at = clock_timestamp(),
		header_values[array_position(header_names, convert_to($1, 'UTF8'))] = 'application/json' WHERE kind = 'unknown'`, outbox.PropertyContentType)
	runParkedOnce(t, c)
	want := []string{"act k process-payment 0 true undecodable", "act k process-payment 0 true key-reused"}
	if got := f.emitted(t, "answer"); !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q; parked %q", got, want, f.parked(t))
	}
}

// An answer has from the message what a handler's would have.
func TestAnAnswerIsCompleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, answering(f.step(f.effect("paid"), f.effect("refunded"))))
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var want []string
	for i, msg := range []*message.Message{undo("k"), saying(act("k"), "{")} {
		msg.Metadata.Set(outbox.PropertyCorrelation, "saga")
		msg.Metadata.Set(outbox.HeaderTraceParent, parent)
		if err := c.Handle(t.Context(), msg.Metadata.Get(outbox.PropertyType), msg); err != nil {
			t.Fatal(i, err)
		}
		want = append(want, fmt.Sprint("answer tenant k orchestrate saga ", msg.UUID, " ", parent))
	}
	got := f.texts(t, `SELECT concat_ws(' ', topic, scope, key, step, `+outboxsql.LoggedCorrelation+`, causation_id, headers->>'traceparent') FROM {schema}.outbox m ORDER BY id`)
	if !slices.Equal(got, want) {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

// If the function that makes the answer fails, no answer is sent, and no message retries for it.
func TestAnAnswerThatFails(t *testing.T) {
	t.Parallel()
	for name, unhandled := range map[string]func(Unhandled, Emit){
		"panic": func(_ Unhandled, emit Emit) {
			emit(outbox.Message{Topic: "answer", Step: "orchestrate", Payload: []byte("{}")})
			panic("no")
		},
		"refused": func(_ Unhandled, emit Emit) { emit(outbox.Message{Topic: "answer"}) },
		"queued":  func(u Unhandled, _ Emit) { u.Queue("SELECT 1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var lines atomic.Int32
			step := f.step(f.effect("paid"), f.effect("refunded"))
			step.Unhandled = unhandled
			c := f.consumer(t, Options{Logger: slog.New(counting{&lines})}, step)
			handle(t, c, undo("k0"))
			settle(t, c, undo("k1"), act("k2"))
			if got, want := f.rows(t), "k0 void 0, k1 void 0, k2 done 1"; got != want {
				t.Errorf("inbox %q, want %q", got, want)
			}
			if got := f.emitted(t, "answer"); len(got) > 0 || lines.Load() != 2 {
				t.Errorf("emitted %q and logged %d lines, want nothing and 2", got, lines.Load())
			}
		})
	}
}

// A transaction that is lost takes the answer with it; the next one has its own.
func TestAnAnswerOfABatchThatFails(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls := 0
	step := answering(f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		_, err := tx.Query(ctx, "SELECT generate_series(1, 3)") // left open: the batch is lost
		return err
	}, f.effect("refunded")))
	answer := step.Unhandled
	step.Unhandled = func(u Unhandled, emit Emit) {
		calls++
		answer(u, emit)
	}
	settle(t, f.consumer(t, Options{}, step), undo("a"), act("k"))
	if got := f.emitted(t, "answer"); len(got) != 1 || calls != 2 {
		t.Errorf("answers %q after %d calls, want one after 2", got, calls)
	}
}

// The row is void, but the answer to COMMIT is lost. When that is found out, nothing
// is emitted a second time.
func TestAnAnswerWhoseCommitReplyIsLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, pool := pgtest.NewProxy(t)
	step := answering(f.step(f.effect("paid"), f.effect("refunded")))
	answer := step.Unhandled
	step.Unhandled = func(u Unhandled, emit Emit) {
		answer(u, emit)
		proxy.Lose(pgtest.LoseReply)
	}
	c := f.consumerOn(t, pool, Options{Logger: slog.New(healing{proxy})}, step)
	if acked := settle(t, c, undo("k")); len(acked) != 1 {
		t.Error("the message was not acked")
	}
	if got := f.emitted(t, "answer"); len(got) != 1 {
		t.Errorf("answers %q, want one", got)
	}
}

// What a handler has emitted falls with what it has queued, and there is no answer
// yet.
func TestAFailureByWhatIsQueuedEmitsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, answering(f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], emit Emit) error {
		in.Queue("SELECT 1/length($1)", "")
		emit(outbox.Message{Topic: "paid", Step: "ship"})
		return nil
	}, nil)))
	handle(t, c, act("k0"))
	settle(t, c, keyed(3)...)
	if got := f.texts(t, "SELECT topic FROM {schema}.outbox"); len(got) > 0 {
		t.Errorf("emitted %q, want nothing", got)
	}
}

// In a batch, answers and what handlers emit are in the order of the messages.
func TestAnAnswerKeepsItsPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, answering(f.step(giving(nil), f.effect("refunded"))))
	settle(t, c, numbered("k", "1"), undo("k"), numbered("k", "3"))
	if got, want := strings.Join(f.texts(t, "SELECT topic FROM {schema}.outbox ORDER BY id"), " "), "paid answer paid"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

// Each end of a dead letter is answered, but not what an operator does.
func TestARedrivenDeadLetterIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	end := Terminal(errors.New("no"))
	c := f.consumer(t, Options{}, answering(f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return end }, nil)))
	handle(t, c, act("k"))
	letters := f.desk(t)
	redrive := func() {
		t.Helper()
		if _, err := letters.Redrive(t.Context()); err != nil {
			t.Fatal(err)
		}
		runParkedOnce(t, c)
	}
	redrive()
	end = errors.New("not yet")
	redrive()
	if n, err := letters.Bury(t.Context(), 1); n != 1 || err != nil {
		t.Fatalf("Bury = %d, %v", n, err)
	}
	want := []string{"act k process-payment 1 true terminal", "act k process-payment 1 true terminal"}
	if got := f.emitted(t, "answer"); !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
}

// The call of an Effect fails for good.
func TestAnEffectThatDiesIsAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	p.refuse = []string{"never"}
	woken := 0
	c := f.consumer(t, Options{Wake: func() { woken++ }}, answering(f.effectStep(p.url, false)))
	handle(t, c, act("k"), undo("other"))
	want := []string{"act k process-payment 1 true terminal", "undo other process-payment 0 false"}
	if got := f.emitted(t, "answer"); !slices.Equal(got, want) || woken != 2 {
		t.Errorf("answers %q after %d wakes, want %q", got, woken, want)
	}
}
