package operator

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A letterFixture has a consumer of two steps whose handlers fail as long as they
// are broken: their messages are dead letters at once then.
type letterFixture struct {
	*fixture
	c       *consumer.Consumer
	letters *DeadLetters
	broken  atomic.Bool
}

func newLetterFixture(t *testing.T) *letterFixture {
	t.Helper()
	f := &letterFixture{fixture: newFixture(t)}
	f.broken.Store(true)
	paying := f.step(f.unlessBroken("paid"), f.unlessBroken("refunded"))
	cancelling := consumer.Step{
		Name: "cancel", Action: consumer.On("book", f.unlessBroken("booked")), Compensation: consumer.On("unbook", f.unlessBroken("unbooked")),
		RetryBase: 1, RetryCap: 1, CancelParked: true,
	}
	f.c = f.consumer(t, consumer.Options{}, paying, cancelling)
	var err error
	if f.letters, err = NewDeadLetters(f.pool, Inbox, &Options{Schema: f.schema}); err != nil {
		t.Fatalf("NewDeadLetters: %v", err)
	}
	return f
}

func (f *letterFixture) unlessBroken(what string) handler {
	work := f.effect(what)
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[payment], emit consumer.Emit) error {
		if f.broken.Load() {
			return consumer.Terminal(errors.New(what + " went wrong"))
		}
		return work(ctx, tx, in, emit)
	}
}

// working hands msgs over while the handlers work.
func (f *letterFixture) working(t *testing.T, msgs ...*message.Message) {
	t.Helper()
	f.broken.Store(false)
	handle(t, f.c, msgs...)
	f.broken.Store(true)
}

// newest returns the id of the letter that was parked last.
func (f *letterFixture) newest(t *testing.T) (id int64) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), "SELECT max(id) FROM "+f.schema+".parked").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func (f *letterFixture) edit(t *testing.T, e Edit) {
	t.Helper()
	e.By = "tester"
	if _, _, err := f.letters.Edit(t.Context(), f.newest(t), e); err != nil {
		t.Fatalf("Edit: %v", err)
	}
}

// runAll runs parked messages until none is due.
func (f *letterFixture) runAll(t *testing.T) {
	t.Helper()
	f.broken.Store(false)
	f.runDue(t, f.c)
}

// booking is a message to the step that cancels parked actions.
func booking(topic, key string) *message.Message {
	msg := newMessage(topic, key, payment{1})
	msg.Metadata.Set(outbox.HeaderKey, key+":cancel")
	return msg
}

func without(msg *message.Message, header string) *message.Message {
	delete(msg.Metadata, header)
	return msg
}

func saying(msg *message.Message, payload string) *message.Message {
	msg.Payload = []byte(payload)
	return msg
}

func written(msg *message.Message, at string) *message.Message {
	msg.Metadata.Set(outbox.PropertyTimestamp, at)
	return msg
}

// planCases say what becomes of dead letters, in the order of their plan. guess is
// what can be told without the steps, where that is less.
var planCases = []struct {
	name    string
	arrange func(t *testing.T, f *letterFixture)
	filter  Filter
	force   bool
	want    string
	guess   string
	row     string // of the inbox in the end
	effects string
}{
	{name: "an action", want: "run", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
	}},
	{name: "a compensation", want: "run", row: "compensated", effects: "paid k 1, refunded k 2", arrange: func(t *testing.T, f *letterFixture) {
		f.working(t, act("k"))
		handle(t, f.c, undo("k"))
	}},
	{name: "a compensation of a dead action", filter: Filter{Kind: "compensation"}, want: "action-dead", row: "dead", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"), undo("k"))
	}},
	{name: "both", want: "run waits", row: "compensated", effects: "paid k 1, refunded k 2", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"), undo("k"))
	}},
	{name: "a compensation that was parked before its action", want: "run waits", row: "compensated", effects: "paid k 1, refunded k 2", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"), undo("k"))
		f.exec(t, "UPDATE {schema}.parked SET id = DEFAULT WHERE kind = 'action'")
	}},
	{name: "a compensation that cancels", want: "nothing-to-undo", guess: "action-dead", row: "void", filter: Filter{Kind: "compensation"}, arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, booking("book", "k"), saying(booking("unbook", "k"), "{"))
		f.edit(t, Edit{Payload: []byte("{}")})
		f.exec(t, "UPDATE {schema}.parked SET kind = 'compensation', scope = 'tenant', key = 'k', step = 'cancel', n = '' WHERE kind = 'unknown'")
	}},
	{name: "an action that came again after its compensation", want: "superseded", row: "void", arrange: func(t *testing.T, f *letterFixture) {
		again := act("k")
		again.Metadata.Set(outbox.PropertyRedelivered, "true")
		handle(t, f.c, undo("k"), again)
	}},
	{name: "an action that is done meanwhile", want: "duplicate", row: "done", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.exec(t, "UPDATE {schema}.inbox SET state = 'done'")
	}},
	{name: "a reused key", want: "key-reused", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		f.working(t, act("k"))
		handle(t, f.c, newMessage("pay", "k", payment{3}))
	}},
	{name: "a reused key of a dead action", filter: Filter{Reason: consumer.ReasonKeyReused}, want: "key-reused", row: "dead", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"), newMessage("pay", "k", payment{3}))
	}},
	{name: "a reused key and its dead action", want: "run key-reused", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"), newMessage("pay", "k", payment{3}))
	}},
	{name: "an edited payload", want: "run", row: "done", effects: "paid k 7", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.edit(t, Edit{Payload: []byte(`{"amount":7}`)})
		handle(t, f.c, act("k")) // a late copy of the original is no reused key
	}},
	{name: "a payload edited to what nobody reads", want: "undecodable", row: "dead", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.edit(t, Edit{Payload: []byte(`{`)})
	}},
	{name: "a payload edited to another type", want: "undecodable", guess: "run", row: "dead", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.edit(t, Edit{Payload: []byte(`{"amount":"7"}`)})
	}},
	{name: "unreadable, but done meanwhile", want: "duplicate", row: "done", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.edit(t, Edit{Payload: []byte(`{`)})
		f.exec(t, "UPDATE {schema}.inbox SET state = 'done'")
	}},
	{name: "an action edited to a compensation", want: "undecodable", guess: "unread", row: "dead", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.edit(t, Edit{Set: map[string]string{outbox.PropertyType: "book"}})
		f.edit(t, Edit{Set: map[string]string{"x": "y"}})
	}},
	{name: "a type that was edited and edited back", want: "run", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.edit(t, Edit{Remove: []string{outbox.PropertyType}})
		f.edit(t, Edit{Set: map[string]string{outbox.PropertyType: "pay"}})
	}},
	{name: "a sender's word for an edited type", want: "run", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		msg := act("k")
		msg.Metadata.Set(HeaderTypeWas, "book")
		handle(t, f.c, msg)
		f.edit(t, Edit{Set: map[string]string{"x": "y"}})
	}},
	{name: "undecodable", want: "undecodable", guess: "unread", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, saying(act("k"), "{"))
	}},
	{name: "no key", want: "undecodable", guess: "unread", arrange: func(t *testing.T, f *letterFixture) {
		deliver(t, f, "pay", without(act("k"), outbox.HeaderKey))
	}},
	{name: "a payload that was mended", want: "run", guess: "unread", row: "done", effects: "paid k 5", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, saying(act("k"), "{"))
		f.edit(t, Edit{Payload: []byte(`{"amount":5}`)})
	}},
	{name: "a key that was added", want: "run", guess: "unread", row: "done", effects: "paid new 1", arrange: func(t *testing.T, f *letterFixture) {
		deliver(t, f, "pay", without(act("k"), outbox.HeaderKey))
		f.edit(t, Edit{Set: map[string]string{outbox.HeaderKey: "new:process-payment"}})
	}},
	{name: "a type that a newer consumer knows", want: "run", guess: "unread", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		deliver(t, f, "pay", act("k"))
		f.exec(t, "UPDATE {schema}.parked SET kind = 'unknown', scope = NULL, key = NULL, step = NULL, n = NULL, reason = 'type-unknown'")
		f.exec(t, "DELETE FROM {schema}.inbox")
	}},
	{name: "a type of nobody's", want: "undecodable", guess: "unread", arrange: func(t *testing.T, f *letterFixture) {
		msg := act("k")
		msg.Metadata.Set(outbox.PropertyType, "paid")
		deliver(t, f, "pay", msg)
	}},
	{name: "mended, and done by another copy meanwhile", want: "duplicate", guess: "unread", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		deliver(t, f, "pay", without(act("k"), outbox.HeaderKey))
		f.edit(t, Edit{Set: map[string]string{outbox.HeaderKey: "k:process-payment"}})
		f.working(t, act("k"))
	}},
	{name: "mended, under a used key", want: "key-reused", guess: "unread", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		f.working(t, act("k"))
		handle(t, f.c, saying(act("k"), "{"))
		f.edit(t, Edit{Payload: []byte(`{"amount":1}`)})
	}},
	{name: "mended, while its step is dead", filter: Filter{Kind: "unknown"}, want: "duplicate", guess: "unread", row: "dead", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		deliver(t, f, "pay", without(act("k"), outbox.HeaderKey))
		f.edit(t, Edit{Set: map[string]string{outbox.HeaderKey: "k:process-payment"}})
	}},
	{name: "mended with its dead action", want: "run duplicate", guess: "run unread", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		deliver(t, f, "pay", without(act("k"), outbox.HeaderKey))
		f.edit(t, Edit{Set: map[string]string{outbox.HeaderKey: "k:process-payment"}})
	}},
	{name: "mended twice", want: "run duplicate", guess: "unread unread", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		for range 2 {
			deliver(t, f, "pay", without(act("k"), outbox.HeaderKey))
			f.edit(t, Edit{Set: map[string]string{outbox.HeaderKey: "k:process-payment"}})
		}
	}},
	{name: "two mended under one key", want: "run key-reused", guess: "unread unread", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		for amount := range 2 {
			deliver(t, f, "pay", without(newMessage("pay", "k", payment{amount + 1}), outbox.HeaderKey))
			f.edit(t, Edit{Set: map[string]string{outbox.HeaderKey: "k:process-payment"}})
		}
	}},
	{name: "a copy of a retrying message", want: "duplicate", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.copyLetter(t, "payload")
		f.redriveID(t, 1)
	}},
	{name: "not quite a copy of a retrying message", want: "key-reused", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, act("k"))
		f.copyLetter(t, "'{}'")
		f.redriveID(t, 1)
	}},
	{name: "no row, and too old", want: "too-old", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, written(act("k"), "2020-01-01T00:00:00.5Z"))
		f.sweep(t, "2020-01-02")
	}},
	{name: "no row, and too old by when it was parked", want: "too-old", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, written(act("k"), "yesterday"))
		f.sweep(t, "2100-01-01")
	}},
	{name: "no row, and young", want: "run", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, written(act("k"), "2020-01-02T00:00:00Z"))
		f.sweep(t, "2020-01-01")
	}},
	{name: "a row, however old", want: "run", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, written(act("k"), "2020-01-01T00:00:00Z"))
		f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = '2020-01-02'")
	}},
	{name: "too old, and forced", force: true, want: "run", row: "done", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		handle(t, f.c, written(act("k"), "2020-01-01T00:00:00Z"))
		f.sweep(t, "2020-01-02")
	}},
	{name: "a compensation too old, and forced", force: true, want: "run", row: "compensated", effects: "paid k 1, refunded k 2", arrange: func(t *testing.T, f *letterFixture) {
		f.working(t, act("k"))
		handle(t, f.c, written(undo("k"), "2020-01-01T00:00:00Z"))
		f.sweep(t, "2020-01-02")
	}},
	{name: "a compensation without a row", want: "nothing-to-undo", row: "void", effects: "paid k 1", arrange: func(t *testing.T, f *letterFixture) {
		f.working(t, act("k"))
		handle(t, f.c, undo("k"))
		f.exec(t, "DELETE FROM {schema}.inbox")
	}},
}

// deliver hands msg over from a topic that need not be its type.
func deliver(t *testing.T, f *letterFixture, topic string, msg *message.Message) {
	t.Helper()
	if err := f.c.Handle(t.Context(), topic, msg); err != nil {
		t.Fatalf("Handle: %v", err)
	}
}

// sweep removes the rows of the inbox, as retention does.
func (f *letterFixture) sweep(t *testing.T, before string) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = $1::text::timestamptz", before)
	f.exec(t, "DELETE FROM {schema}.inbox")
}

// copyLetter adds a dead letter like the newest one, with another payload.
func (f *letterFixture) copyLetter(t *testing.T, payload string) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT state, kind, scope, key, step, n, topic, message_id, header_names, header_values, `+payload+`, reason, due_at FROM {schema}.parked`)
}

func (f *letterFixture) redriveID(t *testing.T, ids ...int64) Outcomes {
	t.Helper()
	outcomes, err := f.letters.Redrive(t.Context(), Filter{IDs: ids}, nil)
	if err != nil {
		t.Fatalf("Redrive: %v", err)
	}
	return outcomes
}

// plan returns the outcomes of a plan as text, and the letters' ids.
func (f *letterFixture) plan(t *testing.T, filter Filter, opts *PreviewOptions) (outcomes string, ids []int64) {
	t.Helper()
	var all []string
	counts, err := f.letters.Preview(t.Context(), filter, opts, func(p Preview) error {
		if p.Why == "" || p.Payload == nil {
			t.Errorf("letter %d: planned %s without a reason or a payload", p.ID, p.Outcome)
		}
		all, ids = append(all, string(p.Outcome)), append(ids, p.ID)
		return nil
	})
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if sum := counts.Sent() + counts.Removed() + counts.Left(); sum != len(all) {
		t.Errorf("Plan counts %v for %d letters", counts, len(all))
	}
	return strings.Join(all, " "), ids
}

// after is what a letter's outcome looks like once the consumer has run: whether
// it is still there, and why.
var after = map[Outcome]string{
	OutcomeRun: "gone", OutcomeNothingToUndo: "gone", OutcomeWaits: "gone", OutcomeDuplicate: "gone", OutcomeSuperseded: "gone",
	OutcomeActionDead: "dead action-dead", OutcomeKeyReused: "dead key-reused", OutcomeTooOld: "dead terminal",
	OutcomeUndecodable: "dead undecodable",
}

// unreadableReasons are those that undecodable stands for.
var unreadableReasons = strings.NewReplacer("type-unknown", "undecodable", "key-missing", "undecodable")

// A redrive does what its preview says, and a preview changes nothing.
func TestAPlanIsWhatHappens(t *testing.T) {
	t.Parallel()
	for _, tt := range planCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newLetterFixture(t)
			tt.arrange(t, f)
			before := f.tables(t)
			got, ids := f.plan(t, tt.filter, &PreviewOptions{Consumer: f.c, Force: tt.force})
			guessed, _ := f.plan(t, tt.filter, &PreviewOptions{Force: tt.force})
			if guess := tt.guess; got != tt.want || guessed != guess && (guess != "" || guessed != tt.want) {
				t.Errorf("planned %q, without steps %q; want %q and %q", got, guessed, tt.want, guess)
			}
			if diff := cmp.Diff(before, f.tables(t)); diff != "" {
				t.Errorf("planning has changed something (-before +after):\n%s", diff)
			}
			outcomes, err := f.letters.Redrive(t.Context(), tt.filter, &RedriveOptions{Force: tt.force})
			if n := outcomes.Sent() + outcomes.Removed() + outcomes.Left(); err != nil || n != len(ids) {
				t.Errorf("RedriveAll = %v, %v; want %d letters", outcomes, err, len(ids))
			}
			f.runAll(t)
			for i, outcome := range strings.Fields(got) {
				if ended := f.ended(t, ids[i]); ended != after[Outcome(outcome)] {
					t.Errorf("letter %d was to be %s, and is %s", i, outcome, ended)
				}
			}
			if row, _, _ := strings.Cut(f.row(t), " "); row != tt.row {
				t.Errorf("the step is %q, want %q", row, tt.row)
			}
			if got := f.effects(t); got != tt.effects {
				t.Errorf("effects %q, want %q", got, tt.effects)
			}
		})
	}
}

// Without the steps of the consumer, a preview and a redrive count alike what the consumer could not read: one letter
// without an identity, and one whose type its step took before.
func TestAPlanCountsUnreadLettersAsTheRedriveDoes(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	handle(t, f.c, act("k"))
	f.exec(t, "UPDATE {schema}.parked SET reason = 'type-unknown'")
	msg := act("other")
	msg.Metadata.Set(outbox.PropertyType, "paid")
	deliver(t, f, "pay", msg)
	want := Outcomes{OutcomeUnread: 2}
	if got, err := f.letters.Preview(t.Context(), Filter{}, nil, nil); err != nil || !maps.Equal(got, want) {
		t.Errorf("Preview = %v, %v; want %v", got, err, want)
	}
	if got, err := f.letters.Redrive(t.Context(), Filter{}, nil); err != nil || !maps.Equal(got, want) {
		t.Errorf("Redrive = %v, %v; want %v", got, err, want)
	}
	if got, want := f.row(t), "retrying"; !strings.HasPrefix(got, want) {
		t.Errorf("the step is %q, want %q", got, want)
	}
}

// ended says what has become of a letter.
func (f *letterFixture) ended(t *testing.T, id int64) string {
	t.Helper()
	all := f.texts(t, "SELECT state || ' ' || reason FROM {schema}.parked WHERE id = $1", id)
	if len(all) == 0 {
		return "gone"
	}
	return unreadableReasons.Replace(all[0])
}

// tables returns all that there is of steps and letters.
func (f *letterFixture) tables(t *testing.T) []string {
	t.Helper()
	return append(f.texts(t, "SELECT i::text FROM {schema}.inbox i ORDER BY 1"), f.texts(t, "SELECT p::text FROM {schema}.parked p ORDER BY id")...)
}

// A plan over many pages sees each letter once, and its steps as the letters before
// have left them.
func TestAPlanOverManyPages(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	handle(t, f.c, act("k"))
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at
		FROM {schema}.parked, generate_series(1, 1200)`)
	counts, err := f.letters.Preview(t.Context(), Filter{}, nil, nil)
	if diff := cmp.Diff(Outcomes{OutcomeRun: 1, OutcomeDuplicate: 1200}, counts); err != nil || diff != "" {
		t.Errorf("Plan: %v (-want +got):\n%s", err, diff)
	}
	var told []Outcomes
	counts, err = f.letters.Redrive(t.Context(), Filter{}, &RedriveOptions{Progress: func(o Outcomes) { told = append(told, o) }})
	if diff := cmp.Diff(Outcomes{OutcomeRun: 1, OutcomeDuplicate: 1200}, counts); err != nil || diff != "" {
		t.Errorf("RedriveAll: %v (-want +got):\n%s", err, diff)
	}
	if len(told) != 3 || told[0].Removed() != 499 || told[2].Removed() != 1200 {
		t.Errorf("progress %v", told)
	}
	stop := errors.New("enough")
	handle(t, f.c, act("l"))
	if _, err := f.letters.Preview(t.Context(), Filter{}, nil, func(Preview) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a plan whose reader has enough ends with %v", err)
	}
}

// inbox returns the implementation of f's letters.
func (f *letterFixture) inbox() *inboxLetters { return f.letters.letters.(*inboxLetters) }

// A plan says that the saga of an action has ended, wherever its instance is, and only if the action is a command of it.
func TestAPlanSaysThatTheSagaHasEnded(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	const sqlBegin = `INSERT INTO {schema}.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, ended_at)
		VALUES ('tenant', $1, $2, gen_random_uuid(), $4, 1, 'trip', 'h', now(), '', '{}', $3, now(), CASE WHEN $3 LIKE 'comp%ed' THEN now() END)`
	root := uuid.Must(uuid.NewV7()).String()
	f.exec(t, sqlBegin, "ended", "", "compensated", root)
	f.exec(t, sqlBegin, "live", "", "running", root)
	f.exec(t, sqlBegin, "live", "2.1", "completed", root)
	f.exec(t, sqlBegin, "shared", "", "completed", uuid.NewString()) // another service's, with the same key
	migrate := func(ctx context.Context, url string) error { return migrations.Up(ctx, url, "elsewhere") }
	f.exec(t, sqlBegin, "begun", ".first", "compensated", root) // by a request
	url := pgtest.DatabaseFor(t, migrate)
	if !pgtest.Pooled() {
		if err := migrate(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	other := &fixture{pool: pgtest.Pool(t, url), schema: "elsewhere"}
	other.exec(t, sqlBegin, "far", "", "compensated", root)
	gone := pgtest.Pool(t, pgtest.URL())
	gone.Close()
	_, strange := pgtest.NewSchema(t) // of another service, with other tables
	f.exec(t, "ALTER TABLE "+strange+".saga RENAME COLUMN root TO other")
	letters := []struct {
		key, n, kind string
		want         saga.Status
	}{
		{"ended", flow.Mark(root, "1.1"), "action", saga.StatusCompensated}, {"ended", "1", "action", ""}, {"ended", flow.Mark(root, "1.2"), "compensation", ""},
		{"live", flow.Mark(root, "1.1"), "action", ""}, {"live", flow.Mark(root, "2.1-1.1"), "action", saga.StatusCompleted},
		{"far", flow.Mark(root, "1.1"), "action", saga.StatusCompensated}, {"none", flow.Mark(root, "1.1"), "action", ""}, {"shared", flow.Mark(root, "1.1"), "action", ""},
		{"begun", stepkey.JoinN("first", flow.Mark(root, "1.1")), "action", saga.StatusCompensated},
	}
	for _, l := range letters {
		state := map[string]string{"action": "dead", "compensation": "undo-dead"}[l.kind]
		f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, digest, undo_digest) VALUES ('tenant', $1, 'process-payment', $2, $3, sha256('{}'), CASE WHEN $3 = 'undo-dead' THEN sha256('{}') END)`, l.key, l.n, state)
		f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
			VALUES ('dead', $3, 'tenant', $1, 'process-payment', $2, 'pay', 'm', '{}', '{}', '{}', 'terminal', now())`, l.key, l.n, l.kind)
	}
	got := map[string]saga.Status{}
	_, err := f.letters.Preview(t.Context(), Filter{}, &PreviewOptions{Databases: []*pgxpool.Pool{other.pool, gone, f.pool}}, func(p Preview) error {
		got[p.Key+" "+p.N] = p.Ended
		want := map[bool]Outcome{false: OutcomeRun, true: OutcomeSagaEnded}[p.Ended != ""]
		if said := strings.Contains(p.Why, "has ended ("+string(p.Ended)+")"); p.Outcome != want || said != (p.Ended != "") {
			t.Errorf("%s %s: %s, %s", p.Key, p.N, p.Outcome, p.Why)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		if got[l.key+" "+l.n] != l.want {
			t.Errorf("the saga of %s %s has ended: %q, want %q", l.key, l.n, got[l.key+" "+l.n], l.want)
		}
	}
	if _, err := f.letters.Preview(t.Context(), Filter{Key: "far"}, nil, func(p Preview) error {
		if p.Ended != "" {
			t.Errorf("without the other database: %q", p.Ended)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	f.redriveEnded(t, []*pgxpool.Pool{other.pool, gone})
}

// redriveEnded redrives five letters that run and four of sagas that have ended, one of them in another database.
func (f *letterFixture) redriveEnded(t *testing.T, databases []*pgxpool.Pool) {
	t.Helper()
	for _, tt := range []struct {
		opts RedriveOptions
		want Outcomes
	}{
		{RedriveOptions{Databases: databases}, Outcomes{OutcomeRun: 5, OutcomeSagaEnded: 4}},
		{RedriveOptions{Databases: databases}, Outcomes{OutcomeSagaEnded: 4}},
		{RedriveOptions{}, Outcomes{OutcomeRun: 1, OutcomeSagaEnded: 3}}, // far is not known to have ended
		{RedriveOptions{Force: true}, Outcomes{OutcomeRun: 3}},
	} {
		if made, err := f.letters.Redrive(t.Context(), Filter{}, &tt.opts); err != nil || !maps.Equal(made, tt.want) {
			t.Errorf("Redrive with %+v = %v, %v; want %v", tt.opts, made, err, tt.want)
		}
	}
}

// While the instances are locked, for example by a migration, a plan fails after a second, and a redrive leaves the letter.
func TestLockedSagasAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	url := pgtest.DirectDatabase(t) // a lock would stop the plans of other tests
	if err := migrations.Up(t.Context(), url, "alone"); err != nil {
		t.Fatal(err)
	}
	f := &fixture{pool: pgtest.Pool(t, url), schema: "alone"}
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, digest) VALUES ('tenant', 'k', 'pay', $1, 'dead', sha256('{}'))`, flow.Mark(uuid.NewString(), "1.1"))
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT 'dead', 'action', scope, key, step, n, 'pay', 'm', '{}', '{}', '{}', 'terminal', now() FROM {schema}.inbox`)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "LOCK TABLE alone.saga IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	d := letters(t, f, Inbox)
	var refused *pgconn.PgError
	if _, err := d.Preview(t.Context(), Filter{}, nil, nil); !errors.As(err, &refused) || refused.Code != lockNotAvailable {
		t.Errorf("a plan = %v, want %s", err, lockNotAvailable)
	}
	if made, err := d.Redrive(t.Context(), Filter{}, nil); err != nil || !maps.Equal(made, Outcomes{OutcomeBusy: 1}) {
		t.Errorf("a redrive = %v, %v; want one busy", made, err)
	}
}
