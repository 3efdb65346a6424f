package consumer

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// A recorder writes down what an Observer is told.
type recorder struct {
	mu           sync.Mutex
	open         map[*recordedEntry]bool
	events       []string
	transactions []string
	problems     []string
}

type recordedEntry struct {
	r  *recorder
	id string
}

type entryKey struct{}

func (e *recordedEntry) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, entryKey{}, e.id)
}

func (e *recordedEntry) Trace() (parent, state string) { return "00-" + e.id, "own" }

func (r *recorder) Enter(_ context.Context, in *Delivery) Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &recordedEntry{r, fmt.Sprint(in.Key, "-", in.Undo, "-", in.Attempt)}
	if r.open == nil {
		r.open = map[*recordedEntry]bool{}
	}
	r.open[e] = true
	return e
}

func (r *recorder) Observe(_ context.Context, e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry, entered := e.Entry.(*recordedEntry)
	if entered != e.Entered || entered && !r.open[entry] {
		r.problems = append(r.problems, fmt.Sprintf("%+v has not its entry", e))
	}
	delete(r.open, entry)
	if e.Ended.Before(e.Began) || e.Began.IsZero() || (e.Entered && !e.Parked) != (e.Lag >= 0) {
		r.problems = append(r.problems, fmt.Sprintf("%+v has wrong times", e))
	}
	line := []any{e.Delivery.Step, e.Outcome, e.Reason, "entered", e.Entered, "attempt", e.Delivery.Attempt, "parked", e.Parked, "redelivered", e.Redelivered, "batch", e.Batch}
	if e.Delivery.Undo {
		line = slices.Insert(line, 0, any("undo"))
	}
	if e.Err != nil {
		line = append(line, e.Err.Error())
	}
	r.events = append(r.events, strings.Join(strings.Fields(fmt.Sprintln(line...)), " "))
}

func (r *recorder) Ended(_ context.Context, t Transaction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transactions = append(r.transactions, fmt.Sprint(t.Messages, " ", t.Err))
	if t.Time <= 0 {
		r.problems = append(r.problems, "a transaction took no time")
	}
}

// take returns the events since the last call.
func (r *recorder) take(t *testing.T) []string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) > 0 || len(r.problems) > 0 {
		t.Errorf("%d entries are open; %s", len(r.open), strings.Join(r.problems, "\n"))
	}
	events := r.events
	r.events, r.problems = nil, nil
	return events
}

// scripted is a handler that does what the message's amount says.
func scripted(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
	switch {
	case in.Body.Amount == 10 && in.Attempt == 1:
		return errors.New("once")
	case in.Body.Amount == 11:
		return Terminal(errors.New("never"))
	case in.Body.Amount == 12:
		panic("broken")
	case in.Body.Amount == 13:
		emit(outbox.Message{Topic: "", Step: "s"})
	case in.Body.Amount == 14 && in.Attempt == 1:
		return tx.Conn().Close(ctx)
	case in.Body.Amount == 15:
		_, _ = tx.Exec(ctx, "nonsense")
	}
	return nil
}

// What an observer is told of every way that an arrival can go.
func TestWhatAnObserverIsTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	step := f.step(scripted, scripted)
	step.MaxAttempts = 2
	c := f.consumer(t, Options{Observer: r}, step)
	of := func(topic, key string, amount int) func() {
		msg := newMessage(topic, key, payment{amount})
		msg.Metadata.Set(outbox.PropertyTimestamp, time.Now().Add(-time.Minute).Format(time.RFC3339Nano))
		return func() { handle(t, c, msg) }
	}
	again := func(topic, key string, amount int) func() {
		msg := newMessage(topic, key, payment{amount})
		msg.Metadata.Set(outbox.PropertyRedelivered, "true")
		msg.Metadata.Set(outbox.PropertyTimestamp, time.Now().Format(time.RFC3339))
		return func() { handle(t, c, msg) }
	}
	parked := func() { runParkedOnce(t, c) }
	const (
		delivered = " parked false redelivered false batch 1"
		fromTable = " parked true redelivered false batch 1"
		pay       = "process-payment "
	)
	for _, tt := range []struct {
		name string
		do   func()
		want []string
	}{
		{"done", of("pay", "a", 1), []string{pay + "done entered true attempt 1" + delivered}},
		{"duplicate", of("pay", "a", 1), []string{pay + "duplicate entered false attempt 0" + delivered}},
		{"redelivered duplicate", again("pay", "a", 1), []string{pay + "duplicate entered false attempt 0 parked false redelivered true batch 1"}},
		{"another payload", of("pay", "a", 2), []string{pay + "dead key-reused entered false attempt 0" + delivered + " consumer: scope, key and step were used before with another payload"}},
		{"compensated", of("unpay", "a", 2), []string{"undo " + pay + "done entered true attempt 1" + delivered}},
		{"superseded", of("pay", "a", 1), []string{pay + "superseded entered false attempt 0" + delivered}},
		{"tombstone", of("unpay", "b", 2), []string{"undo " + pay + "tombstone entered false attempt 0" + delivered}},
		{"superseded, and perhaps died before", again("pay", "b", 1), []string{pay + "dead superseded entered false attempt 0 parked false redelivered true batch 1 consumer: the compensation came first and undid nothing, but an earlier delivery of the action may have died in its handler"}},
		{"fails once", of("pay", "c", 10), []string{pay + "retry failed entered true attempt 1" + delivered + " once"}},
		{"runs again", parked, []string{pay + "done entered true attempt 2" + fromTable}},
		{"terminal", of("pay", "d", 11), []string{pay + "dead terminal entered true attempt 1" + delivered + " never"}},
		{"panics", of("pay", "e", 12), []string{pay + "retry failed entered true attempt 1" + delivered + " consumer: the handler panicked: broken"}},
		{"panics for the last time", parked, []string{pay + "dead attempts-exhausted entered true attempt 2" + fromTable + " consumer: the handler panicked: broken"}},
		{"its action is dead", of("unpay", "e", 1), []string{"undo " + pay + "dead action-dead entered false attempt 0" + delivered + " consumer: the action is a dead letter, so it is not known whether there is anything to undo"}},
		{"emits nonsense", of("pay", "f", 13), []string{pay + "dead emit-invalid entered true attempt 1" + delivered + " outbox: invalid message: Topic must be 1 to 200 printable bytes (message 1 of 1)"}},
		{"loses its connection", of("pay", "g", 14), []string{pay + "retry failed entered true attempt 1" + delivered + " consumer: the connection was lost while the handler ran"}},
		{"runs after that", parked, []string{pay + "done entered true attempt 2" + fromTable}},
		{"spoils its transaction", of("pay", "h", 15), []string{pay + "retry failed entered true attempt 1" + delivered + " consumer: the handler returned nil after a statement had failed in its transaction"}},
		{"waits for the action", of("unpay", "h", 2), []string{"undo " + pay + "retry waits-for-action entered false attempt 0" + delivered}},
		{"no step", of("other", "h", 1), []string{`dead type-unknown entered false attempt 0` + delivered + ` no step of this consumer takes type "other" from topic other`}},
	} {
		tt.do()
		got := r.take(t)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	checkCounters(t, c.Counters())
}

// checkCounters compares them with what TestWhatAnObserverIsTold has done.
func checkCounters(t *testing.T, got Counters) {
	t.Helper()
	want := Counters{
		Steps: []StepCounters{
			{
				Step:     "process-payment",
				Outcomes: map[Outcome]uint64{OutcomeDone: 3, OutcomeDuplicate: 2, OutcomeDead: 5, OutcomeSuperseded: 1, OutcomeRetry: 4},
				Retries:  map[Reason]uint64{ReasonFailed: 4},
				Dead:     map[Reason]uint64{ReasonKeyReused: 1, ReasonSuperseded: 1, ReasonTerminal: 1, ReasonEmitInvalid: 1, ReasonExhausted: 1},
			},
			{
				Step: "process-payment", Undo: true,
				Outcomes: map[Outcome]uint64{OutcomeDone: 1, OutcomeTombstone: 1, OutcomeRetry: 1, OutcomeDead: 1},
				Retries:  map[Reason]uint64{ReasonWaits: 1},
				Dead:     map[Reason]uint64{ReasonActionDead: 1},
			},
		},
		Rejected:   map[Reason]uint64{ReasonTypeUnknown: 1},
		RolledBack: 1, // with the connection
	}
	entries := [][2]uint64{{10, 7}, {1, 1}}
	for i := range got.Steps {
		s := &got.Steps[i]
		if n := [2]uint64{s.Handler.Count, s.Lag.Count}; n != entries[i] {
			t.Errorf("step %d has %d entries and lags, want %d", i, n, entries[i])
		}
		if least := 60 * float64(s.Lag.Count); s.Lag.Sum < least || s.Lag.Sum > least+30 {
			t.Errorf("step %d: the lags' sum is %g, want little over %g", i, s.Lag.Sum, least)
		}
		s.Handler, s.Lag = Histogram{}, Histogram{}
	}
	if n := got.Batches; n.Sum != 19 || n.Count != 19 || n.Buckets[0].Count != 19 || got.Transactions.Count != 19 || got.Transactions.Sum <= 0 {
		t.Errorf("transactions %+v of %+v messages, want 19 of one each", got.Transactions, n)
	}
	got.Transactions, got.Batches = Histogram{}, Histogram{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

// An attempt of which nothing is known to have committed is told as such, with
// the entry, and what follows is told too.
func TestAnObserverIsToldOfALostCommit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		loss pgtest.Loss
		want string
	}{
		"committed":     {pgtest.LoseReply, "process-payment duplicate entered "},
		"not committed": {pgtest.LoseCommit, "process-payment retry failed entered "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy, pool := pgtest.NewProxy(t)
			r := &recorder{}
			step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
				proxy.Lose(tt.loss)
				return nil
			}, nil)
			c := f.consumerOn(t, pool, Options{Observer: r}, step)
			a, _ := readAttempt(c, "pay", stamped(act("k")))
			var err error
			tries := 0
			for tries < 3 {
				tries++
				err = c.executor.executeAttempt(t.Context(), a)
				proxy.Lose(pgtest.LoseNothing)
				if err == nil {
					break
				}
			}
			if err != nil {
				t.Fatalf("handle: %v", err)
			}
			told := r.take(t)
			if len(told) != tries || !strings.HasPrefix(told[tries-1], tt.want) {
				t.Errorf("told of %d tries: %q; the last begins with %q, want %q", tries, told, told[tries-1], tt.want)
			}
			for _, line := range told[:tries-1] {
				if !strings.HasPrefix(line, "process-payment undecided entered ") {
					t.Errorf("told %q of a try that was not the last", line)
				}
			}
			if n := c.Counters(); n.Steps[0].Handler.Count != 1 || n.InFlight != 0 {
				t.Errorf("%d entries, %d in flight; want 1 and 0", n.Steps[0].Handler.Count, n.InFlight)
			}
		})
	}
}

// An entry that was lost is told as what its row and its parked copy then say.
func TestAnObserverIsToldOfALostEntry(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	for name, tt := range map[string]struct {
		meanwhile string
		want      string
	}{
		"another delivery was parked": {"", "process-payment retry failed entered true attempt 1 parked false redelivered false batch 1 lost"},
		"its parked copy is gone":     {"DELETE FROM {schema}.parked", "process-payment duplicate entered true attempt 1 parked true redelivered false batch 1 lost"},
		"its step is locked":          {"LOCK", "process-payment undecided entered true attempt 1 parked true redelivered false batch 1 lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			r := &recorder{}
			c := f.consumer(t, Options{Observer: r}, f.step(scripted, nil))
			msg := stamped(newMessage("pay", "k", payment{10}))
			handle(t, c, msg)
			r.take(t)
			a, _ := readAttempt(c, "pay", msg)
			if tt.meanwhile != "" {
				rows, err := c.retrier.takeParked(t.Context(), 1, c.retrier.stepNames...)
				if err != nil || len(rows) != 1 {
					t.Fatal(rows, err)
				}
				a = c.retrier.readParked(&rows[0])
			}
			if tt.meanwhile == "LOCK" {
				tx, err := f.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
				if _, err := tx.Exec(t.Context(), "SELECT FROM "+f.schema+".inbox FOR UPDATE"); err != nil {
					t.Fatal(err)
				}
			} else if tt.meanwhile != "" {
				f.exec(t, tt.meanwhile)
			}
			a.Attempt = 1
			a.lose(lost)
			c.router.reporter.reportEntry(t.Context(), a)
			c.router.reporter.reportExit(a, lost)
			a.noteOutcome(OutcomeDone, "", nil)
			if err := c.executor.executeAttempt(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.want}, r.take(t)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func stamped(msg *message.Message) *message.Message {
	msg.Metadata.Set(outbox.PropertyTimestamp, time.Now().Format(time.RFC3339Nano))
	return msg
}

// A handler that ends its goroutine, and a message that nothing could be done
// about, are told too; the first is not in flight for ever.
func TestAnObserverIsToldOfWhatIsUndecided(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	c := f.consumer(t, Options{Observer: r}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
		runtime.Goexit()
		return nil
	}, nil))
	var lane sync.WaitGroup
	lane.Go(func() { _ = c.Handle(context.WithoutCancel(t.Context()), "pay", stamped(act("k"))) })
	lane.Wait()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, msg := range []*message.Message{act("k"), newMessage("other", "k", payment{1})} {
		if err := c.Handle(over, msg.Metadata.Get(outbox.PropertyType), msg); err == nil {
			t.Error("handled a message without a database")
		}
	}
	want := []string{
		"process-payment undecided entered true attempt 1 parked false redelivered false batch 1 consumer: the handler ended its goroutine",
		"process-payment undecided entered false attempt 0 parked false redelivered false batch 1 consumer: connect: context canceled",
		"undecided entered false attempt 0 parked false redelivered false batch 1 consumer: store dead letter: consumer: connect: context canceled",
	}
	if diff := cmp.Diff(want, r.take(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	n := c.Counters()
	if n.InFlight != 0 || n.Unburied != 1 || n.Steps[0].Outcomes[OutcomeUndecided] != 2 || n.Steps[0].Handler.Count != 1 {
		t.Errorf("counters %+v", n)
	}
}

// While a handler runs it is in flight, under the context of its entry, and
// what it emits has the entry's trace, unless it has its own.
func TestAHandlerRunsInItsEntry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var c *Consumer
	var under any
	inFlight := 0
	handler := func(ctx context.Context, _ pgx.Tx, _ Message[payment], emit Emit) error {
		under, inFlight = ctx.Value(entryKey{}), c.Counters().InFlight
		emit(outbox.Message{Topic: "t", Step: "s"}, outbox.Message{Topic: "t", Step: "s", Headers: map[string]string{"traceparent": "mine"}})
		return nil
	}
	c = f.consumer(t, Options{Observer: &recorder{}}, f.step(handler, nil))
	msg := act("k")
	msg.Metadata.Set(outbox.HeaderTraceParent, "00-sender")
	handle(t, c, msg)
	if under != "k-false-1" || inFlight != 1 || c.Counters().InFlight != 0 {
		t.Errorf("handler ran under %v with %d in flight, and %d afterwards", under, inFlight, c.Counters().InFlight)
	}
	got := f.texts(t, "SELECT headers::text FROM {schema}.outbox ORDER BY id")
	if diff := cmp.Diff([]string{`{"traceparent":"00-k-false-1","tracestate":"own"}`, `{"traceparent":"mine"}`}, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// jobsOf reads messages to be handled in one transaction.
func jobsOf(t *testing.T, c *Consumer, msgs ...*message.Message) (attempts []*attempt) {
	t.Helper()
	for _, msg := range msgs {
		a, rejected := readAttempt(c, "pay", stamped(msg))
		if rejected != nil {
			t.Fatal(rejected)
		}
		a.origin = boardEntry{topic: "pay", msg: msg}
		attempts = append(attempts, a)
	}
	return attempts
}

// What fails in a batch is parked in its transaction, and is told like the others.
func TestAnObserverIsToldOfABatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	c := f.consumer(t, Options{Observer: r, BatchTime: time.Minute}, f.step(scripted, nil))
	handle(t, c, stamped(act("old")))
	r.take(t)
	r.transactions = nil
	attempts := jobsOf(t, c, act("old"), act("a"), newMessage("pay", "b", payment{10}), act("c"))
	if left := c.executor.executeBatch(t.Context(), t.Context(), attempts); len(left) > 0 {
		t.Fatalf("%d are left", len(left))
	}
	const pay, delivered = "process-payment ", " parked false redelivered false batch 4"
	want := []string{
		pay + "duplicate entered false attempt 0" + delivered,
		pay + "done entered true attempt 1" + delivered,
		pay + "retry failed entered true attempt 1" + delivered + " once",
		pay + "done entered true attempt 1" + delivered,
	}
	if diff := cmp.Diff(want, r.take(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"4 <nil>"}, r.transactions); diff != "" {
		t.Errorf("transactions (-want +got):\n%s", diff)
	}
	if n := c.Counters(); n.InFlight != 0 || n.Steps[0].Handler.Count != 4 || n.Batches.Sum != 5 || n.RolledBack != 0 {
		t.Errorf("counters %+v", n)
	}
}

// A message whose transaction was lost with another one of it is told so, and
// then what becomes of it.
func TestAnObserverIsToldOfALostBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	c := f.consumer(t, Options{Observer: r, BatchTime: time.Minute}, f.step(scripted, nil))
	attempts := jobsOf(t, c, act("a"), newMessage("pay", "b", payment{14}), act("c"))
	if left := c.executor.executeBatch(t.Context(), t.Context(), attempts); len(left) > 0 {
		t.Fatalf("%d are left", len(left))
	}
	const pay, delivered = "process-payment ", " parked false redelivered false batch "
	want := []string{
		pay + "undone entered true attempt 1" + delivered + "3",
		pay + "done entered true attempt 2" + delivered + "1",
		pay + "retry failed entered true attempt 1" + delivered + "1 consumer: the connection was lost while the handler ran",
		pay + "done entered true attempt 1" + delivered + "1",
	}
	if diff := cmp.Diff(want, r.take(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(r.transactions) != 3 || r.transactions[1] != "1 <nil>" || r.transactions[2] != "1 <nil>" {
		t.Errorf("transactions %q, want one that was lost and one each of those that run again", r.transactions)
	}
	if n := c.Counters(); n.InFlight != 0 || n.Steps[0].Handler.Count != 4 || n.Steps[0].Outcomes[OutcomeUndone] != 1 || n.RolledBack != 1 {
		t.Errorf("counters %+v", n)
	}
}

// A handler that ends its goroutine takes its whole batch with it, and each of the
// entered ones is told.
func TestAnObserverIsToldOfADesertedBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := &recorder{}
	c := f.consumer(t, Options{Observer: r, BatchTime: time.Minute}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		if in.Body.Amount == 2 {
			runtime.Goexit()
		}
		return nil
	}, nil))
	attempts := jobsOf(t, c, act("a"), newMessage("pay", "b", payment{2}), act("c"))
	var lane sync.WaitGroup
	lane.Go(func() {
		c.executor.executeBatch(context.WithoutCancel(t.Context()), context.WithoutCancel(t.Context()), attempts)
	})
	lane.Wait()
	const undecided = "process-payment undecided entered true attempt 1 parked false redelivered false batch 1 consumer: the handler ended its goroutine"
	if diff := cmp.Diff([]string{undecided, undecided}, r.take(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := c.Counters(); n.InFlight != 0 || n.RolledBack != 1 {
		t.Errorf("counters %+v", n)
	}
}

// The lag is unknown where the timestamp says nothing, and never negative.
func TestLag(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	for stamp, want := range map[string]time.Duration{
		"2030-01-02T03:04:05.5Z":    100 * time.Millisecond,
		"2030-01-02T03:04:05Z":      600 * time.Millisecond,
		"2030-01-02T04:04:05+01:00": 600 * time.Millisecond,
		"2030-01-02T03:04:06Z":      0,
		"0001-01-01T00:00:00Z":      -1,
		"":                          -1,
		"yesterday":                 -1,
	} {
		if got := messageLag(message.Metadata{outbox.PropertyTimestamp: stamp}, now); got != want {
			t.Errorf("lag of %q = %s, want %s", stamp, got, want)
		}
	}
}

// Every reason and outcome of the package has a counter.
func TestEveryReasonIsCounted(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]int{}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				if typ, ok := spec.Type.(*ast.Ident); ok && len(spec.Names) == 1 {
					declared[typ.Name]++
				}
			}
			return true
		})
	}
	if declared["Reason"] != len(reasons) || declared["Outcome"] != len(outcomes) {
		t.Errorf("there are %d reasons and %d outcomes, of which %d and %d are counted", declared["Reason"], declared["Outcome"], len(reasons), len(outcomes))
	}
}

// What the seam costs a message, besides its handler and its transaction.
func BenchmarkSeam(b *testing.B) {
	msg := act("k")
	msg.Metadata.Set(outbox.PropertyTimestamp, time.Now().UTC().Format(time.RFC3339Nano))
	a := &attempt{received: received{Delivery: Delivery{ID: msg.UUID, Step: "process-payment", Metadata: msg.Metadata, Attempt: 1}}}
	n := newCounters()
	n.addStep(a.Step)
	for name, observer := range map[string]Observer{"unset": nil, "set": discardObserver{}} {
		b.Run(name, func(b *testing.B) {
			c := &Consumer{counters: n, opts: Options{Observer: observer}}
			b.ReportAllocs()
			for b.Loop() {
				c.router.reporter.reportEntry(b.Context(), a)
				c.router.reporter.reportExit(a, nil)
				a.noteOutcome(OutcomeDone, "", nil)
				c.router.reporter.reportSettled(b.Context(), a, nil)
			}
		})
	}
}

type discardObserver struct{}

func (discardObserver) Enter(context.Context, *Delivery) Entry { return nil }
func (discardObserver) Observe(context.Context, Event)         {}
func (discardObserver) Ended(context.Context, Transaction)     {}
