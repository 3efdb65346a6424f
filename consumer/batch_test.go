package consumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// settle hands msgs to c as one lane would that took them all at once, and returns
// the ids of those that were acked.
func settle(t *testing.T, c *Consumer, msgs ...*message.Message) (acked []string) {
	t.Helper()
	var attempts []*attempt
	for _, msg := range msgs {
		a, rejected := readAttempt(c, msg.Metadata.Get(outbox.PropertyType), msg)
		if rejected != nil {
			t.Fatalf("read: %v", rejected)
		}
		a.origin = boardEntry{topic: a.Topic, msg: msg}
		attempts = append(attempts, a)
	}
	for len(attempts) > 0 {
		attempts = c.executor.executeLoad(t.Context(), t.Context(), attempts)
	}
	for _, msg := range msgs {
		select {
		case <-msg.Acked():
			acked = append(acked, msg.UUID)
		case <-msg.Nacked():
		default:
			t.Errorf("message %s was neither acked nor nacked", msg.Metadata.Get(outbox.HeaderKey))
		}
	}
	return acked
}

// keyed returns n actions with the keys k0, k1 and so on.
func keyed(n int) (msgs []*message.Message) {
	for i := range n {
		msgs = append(msgs, act(fmt.Sprint("k", i)))
	}
	return msgs
}

// rows returns "key state attempts" of every row of the inbox.
func (f *fixture) rows(t *testing.T) string {
	t.Helper()
	return strings.Join(f.texts(t, "SELECT concat_ws(' ', key, state, attempts) FROM {schema}.inbox ORDER BY key"), ", ")
}

func TestABatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	woken := 0
	c := f.consumer(t, Options{Wake: func() { woken++ }}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], emit Emit) error {
		in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key)
		emit(outbox.Message{Topic: "paid", Step: "ship"})
		return nil
	}, f.effect("refunded")))
	if acked := settle(t, c, append(keyed(5), undo("k9"))...); len(acked) != 6 || woken != 1 {
		t.Errorf("acked %d messages and woke the relay %d times, want 6 and 1", len(acked), woken)
	}
	if got, want := f.rows(t), "k0 done 1, k1 done 1, k2 done 1, k3 done 1, k4 done 1, k9 void 0"; got != want {
		t.Errorf("inbox %q, want %q", got, want)
	}
	if got, want := f.effects(t), "k0, k1, k2, k3, k4"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
	xids := f.texts(t, "SELECT DISTINCT xmin::text FROM {schema}.inbox UNION SELECT xid::text FROM {schema}.outbox")
	queued := f.texts(t, "SELECT DISTINCT xmin::text FROM {schema}.effect") // after one savepoint
	if len(xids) != 1 || len(queued) != 1 {
		t.Errorf("%d transactions, and %d of what was queued; want one", len(xids), len(queued))
	}
	if got, want := strings.Join(f.texts(t, "SELECT key FROM {schema}.outbox ORDER BY id"), " "), "k0 k1 k2 k3 k4"; got != want {
		t.Errorf("emitted for %q, want %q", got, want)
	}
}

// A message that was already executed is not executed again as a member of a batch.
func TestABatchKnowsWhatIsDone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
	handle(t, c, act("k0"), undo("k1"), act("k2"), undo("k2"))
	before := f.effects(t)
	other := newMessage("pay", "k0", payment{7})
	msgs := []*message.Message{act("k0"), act("k1"), act("k2"), undo("k2"), act("k3"), undo("k3"), act("k3"), other}
	if acked := settle(t, c, msgs...); len(acked) != len(msgs) {
		t.Errorf("acked %d of %d messages", len(acked), len(msgs))
	}
	if got, want := strings.TrimPrefix(f.effects(t), before+", "), "paid k3 1, refunded k3 2"; got != want {
		t.Errorf("new effects %q, want %q", got, want)
	}
	compareStored(t, stored{Row: "k0 done 1, k1 void 0, k2 compensated 1, k3 compensated 1", Parked: "dead action key-reused 0"}, stored{Row: f.rows(t), Parked: f.parked(t)})
}

// batchFailures are the ways in which one message of a batch can fail.
var batchFailures = map[string]struct {
	fail          func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error
	parked, inbox string
	spreads       bool // those before it are entered again
}{
	"error":    {func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no") }, "retrying action failed 1", "retrying", false},
	"terminal": {func(context.Context, pgx.Tx, Message[payment], Emit) error { return Terminal(errors.New("no")) }, "dead action terminal 1", "dead", false},
	"panic":    {func(context.Context, pgx.Tx, Message[payment], Emit) error { panic("no") }, "retrying action failed 1", "retrying", false},
	"statement": {func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		_, err := tx.Exec(ctx, "SELECT 1/0")
		return err
	}, "retrying action failed 1", "retrying", false},
	"swallowed": {func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return nil
	}, "retrying action failed 1", "retrying", false},
	"queued": {func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		in.Queue("SELECT 1/($1::integer - 1)", 1)
		return nil
	}, "retrying action failed 1", "retrying", false},
	"emitted": {func(_ context.Context, _ pgx.Tx, _ Message[payment], emit Emit) error {
		emit(outbox.Message{Topic: "x"})
		return nil
	}, "dead action emit-invalid 1", "dead", false},
	"rows left open": {func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		_, err := tx.Query(ctx, "SELECT generate_series(1, 3)")
		return err
	}, "retrying action failed 1", "retrying", true},
	"queued, not to be prepared": {func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		in.Queue("INSERT INTO nowhere VALUES ($1)", in.Key)
		return nil
	}, "retrying action failed 1", "retrying", false},
	"queued after a direct statement": {func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
		in.Queue("SELECT 1/($1::integer - 1)", 1)
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	}, "retrying action failed 1", "retrying", false},
}

// One message of a batch fails, in each way that it can. It is dealt with as if it
// had been alone, and the others as if it had not been there.
func TestOneMessageOfABatchFails(t *testing.T) {
	t.Parallel()
	for name, tt := range batchFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			paid := f.effect("paid")
			entries := map[string]int{}
			c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				entries[in.Key]++
				in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", "queued "+in.Key)
				if in.Key == "k1" {
					return tt.fail(ctx, tx, in, emit)
				}
				return paid(ctx, tx, in, emit)
			}, nil))
			if acked := settle(t, c, keyed(4)...); len(acked) != 4 {
				t.Errorf("acked %d messages, want 4", len(acked))
			}
			if got := f.parked(t); got != tt.parked {
				t.Errorf("parked %q, want %q", got, tt.parked)
			}
			want := fmt.Sprintf("k0 done %d, k1 %s %d, k2 done %d, k3 done %d", entries["k0"], tt.inbox, entries["k1"], entries["k2"], entries["k3"])
			if got := f.rows(t); got != want || (entries["k0"] != 1 || entries["k1"] != 1) && !tt.spreads {
				t.Errorf("inbox %q after entries %v, want %q", got, entries, want)
			}
			effects := strings.Split(f.effects(t), ", ")
			slices.Sort(effects)
			if got, want := strings.Join(effects, ", "), "paid k0 1, paid k2 1, paid k3 1, queued k0, queued k2, queued k3"; got != want {
				t.Errorf("effects %q, want %q", got, want)
			}
		})
	}
}

// None of the handlers uses its transaction, so that the savepoint of the claims is
// all there is; one of them fails by itself.
func TestQueuedStatementsOfABatchFail(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"INSERT INTO nowhere VALUES ($1)", "SELECT 1/length($1) - 1/(length($1) - 2)"} {
		for name, before := range map[string]*message.Message{"": nil, " beside an older row": act("k0")} {
			t.Run(statement+name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				c := f.consumer(t, Options{}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
					switch in.Key {
					case "k1":
						in.Queue(statement, in.Key)
					case "k2":
						return errors.New("no")
					}
					in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key)
					return nil
				}, nil))
				if before != nil {
					handle(t, c, before)
				}
				settle(t, c, keyed(4)...)
				if got, want := f.rows(t), "k0 done 1, k1 retrying 1, k2 retrying 1, k3 done 1"; got != want {
					t.Errorf("inbox %q, want %q", got, want)
				}
				compareStored(t, stored{Effects: "k0, k3", Parked: "retrying action failed 1; retrying action failed 1"}, stored{Effects: f.effects(t), Parked: f.parked(t)})
			})
		}
	}
}

// Failures of others cost a message nothing.
func TestFailuresInABatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	paid := f.effect("paid")
	step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if in.Key >= "k2" {
			return errors.New("no")
		}
		return paid(ctx, tx, in, emit)
	}, nil)
	step.MaxAttempts = 2
	c := f.consumer(t, Options{}, step)
	settle(t, c, keyed(4)...)
	if got, want := f.rows(t), "k0 done 1, k1 done 1, k2 retrying 1, k3 retrying 1"; got != want {
		t.Errorf("inbox %q, want %q", got, want)
	}
	runParkedOnce(t, c)
	if got, want := f.rows(t), "k0 done 1, k1 done 1, k2 dead 2, k3 dead 2"; got != want {
		t.Errorf("inbox %q, want %q", got, want)
	}
}

// What a handler was entered for in a transaction that another message of its batch has
// lost counts among its attempts.
func TestEntriesInALostBatchCount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	entries := map[string]int{}
	step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
		entries[in.Key]++
		switch {
		case in.Key == "k1" && entries["k1"] == 1:
			return tx.Conn().Close(ctx)
		case in.Key == "k0" && entries["k0"] > 1:
			return errors.New("no")
		}
		return nil
	}, nil)
	step.MaxAttempts = 3
	c := f.consumer(t, Options{}, step)
	settle(t, c, keyed(2)...)
	for range 2 * step.MaxAttempts {
		runParkedOnce(t, c)
	}
	compareStored(t, stored{Row: "k0 dead 3, k1 done 2", Parked: "dead action attempts-exhausted 3"}, stored{Row: f.rows(t), Parked: f.parked(t)})
	if entries["k0"] != 3 {
		t.Errorf("k0 entered its handler %d times, want 3", entries["k0"])
	}
}

// More handlers use their transaction than it can have savepoints.
func TestABatchIsBoundedInSavepoints(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{BatchSize: 100, BatchTime: time.Minute}, f.step(f.effect("paid"), nil))
	if acked := settle(t, c, keyed(100)...); len(acked) != 100 {
		t.Errorf("acked %d messages, want 100", len(acked))
	}
	sizes := f.texts(t, "SELECT count(*)::text FROM {schema}.inbox GROUP BY xmin ORDER BY 1")
	if got, want := strings.Join(sizes, " "), "40 60"; got != want {
		t.Errorf("transactions of %s messages, want %s", got, want)
	}
	if n := c.executor.countTogether(jobsOf(t, c, keyed(100)...)); n != 60 {
		t.Errorf("the next transaction begins with %d messages, want 60", n)
	}
}

// After a COMMIT whose outcome is not known, every message is looked up.
func TestABatchWhoseCommitReplyIsLost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		loss pgtest.Loss
		rows string
	}{
		"committed":     {pgtest.LoseReply, "k0 done 1, k1 done 1, k2 done 1"},
		"not committed": {pgtest.LoseCommit, "k0 done 2, k1 done 2, k2 done 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy, pool := pgtest.NewProxy(t)
			paid := f.effect("paid")
			var first atomic.Bool
			c := f.consumerOn(t, pool, Options{Logger: slog.New(healing{proxy})}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				if in.Key == "k2" && !first.Swap(true) {
					proxy.Lose(tt.loss)
				}
				return paid(ctx, tx, in, emit)
			}, nil))
			if acked := settle(t, c, keyed(3)...); len(acked) != 3 {
				t.Errorf("acked %d messages, want 3", len(acked))
			}
			if got := f.rows(t); got != tt.rows {
				t.Errorf("inbox %q, want %q", got, tt.rows)
			}
			if got, want := f.effects(t), "paid k0 1, paid k1 1, paid k2 1"; got != want {
				t.Errorf("effects %q, want %q", got, want)
			}
		})
	}
}

// healing mends the proxy's line when something is logged: the loss has been noticed.
type healing struct{ proxy *pgtest.Proxy }

func (h healing) Enabled(context.Context, slog.Level) bool { return true }
func (h healing) Handle(context.Context, slog.Record) error {
	h.proxy.Lose(pgtest.LoseNothing)
	return nil
}
func (h healing) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h healing) WithGroup(string) slog.Handler      { return h }

// When time is up, what was not entered has left no trace, and is returned.
func TestABatchIsBoundedInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	paid := f.effect("paid")
	c := f.consumer(t, Options{BatchTime: time.Nanosecond}, f.step(paid, nil))
	var attempts []*attempt
	for _, msg := range keyed(3) {
		a, _ := readAttempt(c, "pay", msg)
		a.origin = boardEntry{topic: "pay", msg: msg}
		attempts = append(attempts, a)
	}
	left := c.executor.executeLoad(t.Context(), t.Context(), attempts)
	if len(left) != 2 || left[0].Key != "k1" {
		t.Fatalf("%d deliveries were left, want 2", len(left))
	}
	compareStored(t, stored{Row: "k0 done 1", Effects: "paid k0 1"}, stored{Row: f.rows(t), Effects: f.effects(t)})
	for len(left) > 0 {
		left = c.executor.executeLoad(t.Context(), t.Context(), left)
	}
	if got, want := f.effects(t), "paid k0 1, paid k1 1, paid k2 1"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

// A handler that gets around the guard and commits: nothing of the batch counts as
// done that is not.
func TestAHandlerEndsABatch(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]stored{
		"COMMIT":   {Row: "k0 dead 1, k1 dead 1, k2 done 1", Effects: "paid k0 1, paid k2 1"},
		"ROLLBACK": {Row: "k0 done 2, k1 dead 1, k2 done 1", Effects: "paid k0 1, paid k2 1"},
		// Who has done it is not known: all are for a person to look at whose claims have committed.
		"COMMIT; BEGIN":             {Row: "k0 dead 1, k1 dead 1, k2 dead 1", Effects: "paid k0 1"},
		"ROLLBACK; BEGIN":           {Row: "k0 done 2, k1 dead 2, k2 done 2", Effects: "paid k0 1, paid k2 1"},
		"COMMIT; BEGIN; lost":       {Row: "k0 dead 1, k1 dead 1, k2 done 1", Effects: "paid k0 1, paid k2 1"},
		"COMMIT; BEGIN; SELECT 1/0": {Row: "k0 dead 1, k1 dead 1, k2 done 1", Effects: "paid k0 1, paid k2 1"},
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			paid := f.effect("paid")
			c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				if in.Key == "k1" {
					sql, lost := strings.CutSuffix(statement, "; lost")
					_, err := tx.Conn().Exec(ctx, sql)
					if lost {
						err = errors.Join(err, tx.Conn().Close(ctx))
					}
					return err
				}
				return paid(ctx, tx, in, emit)
			}, nil))
			if acked := settle(t, c, keyed(3)...); len(acked) != 3 {
				t.Errorf("acked %d messages, want 3", len(acked))
			}
			compareStored(t, want, stored{Row: f.rows(t), Effects: f.effects(t)})
		})
	}
}

// The handlers of two batches lock rows in opposite orders, which are not those of
// their sagas. The server ends one of them, which is repeated.
func TestBatchesThatDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, "INSERT INTO {schema}.effect (what) VALUES ('a'), ('b')")
	met, meet := make(chan bool, 2), make(chan bool)
	go func() {
		<-met
		<-met
		close(meet)
	}()
	var firsts atomic.Int32
	c := f.consumer(t, Options{BatchTime: time.Minute}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
		_, err := tx.Exec(ctx, "UPDATE "+f.schema+".effect SET what = what || '+' WHERE what LIKE $1 || '%'", in.Key[1:])
		if firsts.Add(1) <= 2 {
			met <- true
			<-meet
		}
		return err
	}, nil))
	done := make(chan int, 2)
	for _, keys := range [][]string{{"1a", "2b"}, {"3b", "4a"}} {
		go func() { done <- len(settle(t, c, act(keys[0]), act(keys[1]))) }()
	}
	if n := <-done + <-done; n != 4 {
		t.Errorf("acked %d messages, want 4", n)
	}
	if got := f.texts(t, "SELECT concat_ws(' ', state, attempts) FROM {schema}.inbox"); fmt.Sprint(got) != "[done 1 done 1 done 1 done 1]" || f.parked(t) != "" {
		t.Errorf("rows %v, parked %q; want that nobody's attempts are spent", got, f.parked(t))
	}
	if got := f.effects(t); got != "a++, b++" && got != "b++, a++" {
		t.Errorf("effects %q, want each row twice", got)
	}
}

// counting counts what is logged above Info.
type counting struct{ n *atomic.Int32 }

func (counting) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelInfo }
func (h counting) Handle(context.Context, slog.Record) error  { h.n.Add(1); return nil }
func (h counting) WithAttrs([]slog.Attr) slog.Handler         { return h }
func (h counting) WithGroup(string) slog.Handler              { return h }

// Batches that claim the same steps in opposite orders do not deadlock, whether the
// rows exist or not.
func TestClaimsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var warnings atomic.Int32
	c := f.consumer(t, Options{Logger: slog.New(counting{&warnings})}, f.step(f.effect("paid"), f.effect("refunded")))
	const rounds, keys, lanes = 15, 12, 4
	for round := range rounds {
		done := make(chan int, lanes)
		for lane := range lanes {
			var msgs []*message.Message
			for i := range keys {
				key := fmt.Sprintf("r%d-%d", round, i)
				msgs = append(msgs, act(key))
				if i%3 == 0 {
					msgs = append(msgs, undo(key))
				}
			}
			if lane%2 == 1 {
				slices.Reverse(msgs)
			}
			go func() { done <- len(settle(t, c, msgs...)) }()
		}
		for range lanes {
			if n := <-done; n != keys+keys/3 {
				t.Errorf("round %d: acked %d messages, want %d", round, n, keys+keys/3)
			}
		}
	}
	if n := warnings.Load(); n > 0 {
		t.Errorf("%d batches failed", n)
	}
	if twice := f.texts(t, "SELECT what FROM {schema}.effect GROUP BY what HAVING count(*) > 1"); len(twice) > 0 {
		t.Errorf("effects more than once: %q", twice)
	}
	if got := f.parked(t); got != "" {
		t.Errorf("parked %q", got)
	}
}

// A claim waits for the transaction that has the step's row locked, and reads the row after it. A step that
// this transaction has compensated is not compensated again.
func TestAStepIsReadAfterItsLockIsReleased(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		msgs []*message.Message
		want string
	}{
		"alone":      {[]*message.Message{undo("k")}, "paid k 1"},
		"in a batch": {[]*message.Message{undo("k"), act("other")}, "paid k 1, paid other 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
			handle(t, c, act("k"))
			holder, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback(context.WithoutCancel(t.Context()))
			digest := sha256.Sum256(tt.msgs[0].Payload)
			if _, err := holder.Exec(t.Context(), "UPDATE "+f.schema+".inbox SET state = 'compensated', undo_attempts = 1, undo_digest = $1", digest[:]); err != nil {
				t.Fatal(err)
			}
			done := make(chan int, 1)
			go func() { done <- len(settle(t, c, tt.msgs...)) }()
			f.awaitLockOn(t, "inbox")
			if err := holder.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := <-done; n != len(tt.msgs) || f.effects(t) != tt.want {
				t.Errorf("acked %d messages, effects %q; want %d, %q", n, f.effects(t), len(tt.msgs), tt.want)
			}
		})
	}
}

// awaitLockOn waits until a transaction waits for a row of table.
func (f *fixture) awaitLockOn(t *testing.T, table string) {
	t.Helper()
	limit := time.Now().Add(30 * time.Second)
	for f.texts(t, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position($1 IN query) > 0", f.schema+"."+table)[0] == "0" {
		if time.Now().After(limit) {
			t.Fatalf("nobody waits for a row of %s", table)
		}
	}
}

// Two batches insert the rows of the same steps, given in opposite orders, and both
// get stuck in the middle of it.
func TestClaimsOfNewRowsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var warnings atomic.Int32
	c := f.consumer(t, Options{Logger: slog.New(counting{&warnings})}, f.step(f.effect("paid"), nil))
	holder, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := holder.Exec(t.Context(), "INSERT INTO "+f.schema+".inbox (scope, key, step, n, state) VALUES ('tenant', 'k1', 'process-payment', '', 'open')"); err != nil {
		t.Fatal(err)
	}
	done := make(chan int, 2)
	for _, keys := range [][]string{{"k0", "k1", "k2"}, {"k2", "k1", "k0"}} {
		go func() { done <- len(settle(t, c, act(keys[0]), act(keys[1]), act(keys[2]))) }()
	}
	for f.texts(t, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}.inbox%'")[0] != "2" {
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-done + <-done; n != 6 || warnings.Load() > 0 {
		t.Errorf("acked %d messages, and %d batches failed; want 6 and none", n, warnings.Load())
	}
	if got, want := f.effects(t), "paid k0 1, paid k1 1, paid k2 1"; len(got) != len(want) {
		t.Errorf("effects %q, want each once", got)
	}
}
