package consumer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

func TestQueriesArePreparable(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newQueries(schema, txguard.DefaultConnectionCheck))
}

func TestDuplicatesRunOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
	for _, again := range []string{"pay", "unpay"} {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				msg := act("k")
				if again == "unpay" {
					msg = undo("k")
				}
				if err := c.Handle(t.Context(), again, msg); err != nil {
					t.Errorf("Handle: %v", err)
				}
			})
		}
		wg.Wait()
	}
	if got, want := f.effects(t), "paid k 1, refunded k 2"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
	if got, want := f.row(t), "compensated 1 1"; got != want {
		t.Errorf("row %q, want %q", got, want)
	}
}

func TestActionAndCompensationInAnyOrder(t *testing.T) {
	t.Parallel()
	for order, want := range map[string]struct{ effects, row string }{
		"a":    {"paid k 1", "done 1 0"},
		"au":   {"paid k 1, refunded k 2", "compensated 1 1"},
		"auua": {"paid k 1, refunded k 2", "compensated 1 1"},
		"u":    {"", "void 0 0"},
		"ua":   {"", "void 0 0"},
		"uaua": {"", "void 0 0"},
	} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
			for _, m := range order {
				if m == 'a' {
					handle(t, c, act("k"))
				} else {
					handle(t, c, undo("k"))
				}
			}
			if got := f.effects(t); got != want.effects {
				t.Errorf("effects %q, want %q", got, want.effects)
			}
			if got := f.row(t); got != want.row {
				t.Errorf("row %q, want %q", got, want.row)
			}
			if got := f.parked(t); got != "" {
				t.Errorf("parked: %s", got)
			}
		})
	}
}

// However action and compensation race, the compensation undoes an action that
// happened or prevents one that did not.
func TestActionAndCompensationAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
	for i := range 40 {
		key := string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		var wg sync.WaitGroup
		wg.Go(func() { handle(t, c, act(key)) })
		wg.Go(func() { handle(t, c, undo(key)) })
		wg.Wait()
		switch got := strings.Join(f.texts(t, "SELECT what FROM {schema}.effect WHERE what LIKE '% ' || $1 || ' %' ORDER BY id", key), ", "); got {
		case "", "paid " + key + " 1, refunded " + key + " 2":
		default:
			t.Errorf("key %s: effects %q", key, got)
		}
	}
}

func TestIdentitiesStayApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.step(f.effect("other"), nil)
	other.Name, other.Action.Topic, other.Action.Type = "other", "other", "other"
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil), other)
	scoped := act("k")
	scoped.Metadata.Set(outbox.HeaderScope, "another tenant")
	numbered := act("k")
	numbered.Metadata.Set(outbox.HeaderKey, "k:process-payment#2")
	handle(t, c, act("k"), act("k:k"), scoped, numbered, newMessage("other", "k", payment{1}))
	if got, want := f.effects(t), "paid k 1, paid k:k 1, paid k 1, paid k 1, other k 1"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

func TestTheSameKeyWithAnotherPayloadIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
	handle(t, c, act("k"), newMessage("pay", "k", payment{999}), undo("k"), newMessage("unpay", "k", payment{999}))
	if got, want := f.effects(t), "paid k 1, refunded k 2"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
	if got, want := f.parked(t), "dead action key-reused 0; dead compensation key-reused 0"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

func TestEmittedMessagesCommitWithTheStepAndSayWhereTheyComeFrom(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	woken := 0
	fail := true
	c := f.consumer(t, Options{Wake: func() { woken++ }}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], emit Emit) error {
		emit(outbox.Message{Topic: "paid", Step: "ship"}, outbox.Message{Topic: "audit", Step: "log", Scope: "all", Key: "x", CorrelationID: "own"})
		if fail {
			return errors.New("not yet")
		}
		return nil
	}, nil))
	msg := act("k")
	msg.Metadata.Set(outbox.PropertyCorrelation, "saga-1")
	msg.Metadata.Set(outbox.HeaderTraceParent, "00-trace")
	handle(t, c, msg)
	if got := f.texts(t, "SELECT topic FROM {schema}.outbox"); len(got) != 0 || woken != 0 {
		t.Errorf("a failed attempt left %q in the outbox, woke the relay %d times", got, woken)
	}
	fail = false
	if n := runParkedOnce(t, c); n != 1 {
		t.Fatalf("%d parked messages were due, want 1", n)
	}
	got := f.texts(t, "SELECT concat_ws('|', topic, scope, key, step, "+outboxsql.LoggedCorrelation+", causation_id, headers) FROM {schema}.outbox m ORDER BY id")
	want := []string{
		"paid|tenant|k|ship|saga-1|" + msg.UUID + `|{"traceparent":"00-trace"}`,
		"audit|all|x|log|own|" + msg.UUID + `|{"traceparent":"00-trace"}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || woken != 1 {
		t.Errorf("outbox, woken %d times:\n%s\nwant:\n%s", woken, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// onConn executes sql past the guard of the transaction.
func onConn(sql string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, sql)
		return err
	}
}

func swallowed(do func(context.Context, pgx.Tx) error) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_ = do(ctx, tx)
		return nil
	}
}

func failing(do func(context.Context, pgx.Tx) error) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error { return errors.Join(errors.New("business"), do(ctx, tx)) }
}

func TestAHandlerCannotEndTheTransaction(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler      func(ctx context.Context, tx pgx.Tx) error
		parked, says string
	}{
		"Commit":          {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, "retrying action failed 1", "not by the handler"},
		"Rollback":        {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, "retrying action failed 1", "not by the handler"},
		"COMMIT":          {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "COMMIT"); return err }, "retrying action failed 1", "not by the handler"},
		"COMMIT by Query": {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Query(ctx, "COMMIT AND CHAIN"); return err }, "retrying action failed 1", "not by the handler"},
		"COMMIT in a savepoint": {func(ctx context.Context, tx pgx.Tx) error {
			part, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			var n int
			return part.QueryRow(ctx, "COMMIT AND CHAIN").Scan(&n)
		}, "retrying action failed 1", "not by the handler"},
		"COMMIT on the connection": {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "COMMIT"); return err },
			"dead action terminal 1", "ended the transaction"},
		"ROLLBACK on the connection": {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Conn().Exec(ctx, "ROLLBACK"); return err },
			"dead action terminal 1", "ended the transaction"},
		"COMMIT in a longer string":     {onConn("COMMIT; BEGIN"), "dead action terminal 1", "ended the transaction"},
		"COMMIT and chain":              {onConn("COMMIT AND CHAIN; SELECT 1"), "dead action terminal 1", "ended the transaction"},
		"ROLLBACK in a longer string":   {onConn("/* x */ ROLLBACK; BEGIN"), "dead action terminal 1", "ended the transaction"},
		"COMMIT, then a failure":        {onConn("COMMIT; BEGIN; SELECT 1/0"), "dead action terminal 1", "ended the transaction"},
		"COMMIT in a swallowed failure": {swallowed(onConn("COMMIT; BEGIN; SELECT 1/0")), "dead action terminal 1", "ended the transaction"},
		"COMMIT, then an error":         {failing(onConn("COMMIT; BEGIN")), "dead action terminal 1", "ended the transaction"},
		"COMMIT, then no connection": {func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(onConn("COMMIT; BEGIN")(ctx, tx), tx.Conn().Close(ctx))
		}, "dead action terminal 1", "ended the transaction"},
		"COMMIT in a batch": {func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("COMMIT")
			b.Queue("BEGIN")
			return tx.Conn().SendBatch(ctx, b).Close()
		}, "dead action terminal 1", "ended the transaction"},
		"COMMIT in a guarded batch": {func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("SELECT 1; COMMIT; BEGIN")
			return tx.SendBatch(ctx, b).Close()
		}, "retrying action failed 1", "not by the handler"},
		"swallowed error": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		}, "retrying action failed 1", "a statement had failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
				return tt.handler(ctx, tx)
			}, nil))
			handle(t, c, act("k"))
			if got := f.parked(t); got != tt.parked {
				t.Errorf("parked %q, want %q", got, tt.parked)
			}
			if got := f.texts(t, "SELECT error FROM {schema}.parked")[0]; !strings.Contains(got, tt.says) {
				t.Errorf("the kept error is %q, want one that says %q", got, tt.says)
			}
		})
	}
}

// COMMIT of a transaction in which a statement has failed is answered with ROLLBACK,
// and not with an error. That is none.
func TestACommitThatIsAnsweredWithRollbackIsAnError(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	err := c.executor.database.inTransaction(t.Context(), func(tx pgx.Tx, _ *pgx.Batch) error {
		_, _ = tx.Exec(t.Context(), "SELECT 1/0")
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("the end of the transaction = %v, want ErrTxCommitRollback", err)
	}
}

// What a handler does in a savepoint of its own is its own business.
func TestAHandlerMayUseSavepoints(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	paid := f.effect("paid")
	c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := nested.Exec(ctx, "SELECT 1/0"); err == nil {
			t.Error("1/0 succeeded")
		}
		if err := nested.Rollback(ctx); err != nil {
			return err
		}
		return paid(ctx, tx, in, emit)
	}, nil))
	handle(t, c, act("k"))
	if got, want := f.effects(t), "paid k 1"; got != want {
		t.Errorf("effects %q, want %q; parked %q", got, want, f.parked(t))
	}
}

func TestEffectKeyIsOfTheWholeIdentity(t *testing.T) {
	t.Parallel()
	seen := map[string]Delivery{}
	for _, d := range []Delivery{
		{Scope: "a", Key: "b", Step: "c"}, {Scope: "ab", Step: "c"}, {Scope: "a", Key: "bc"}, {Scope: "a", Key: "b", Step: "c", N: "1"},
		{Scope: "x", Key: "b", Step: "c"}, {Scope: "a", Key: "b", Step: "c", Undo: true}, {Scope: "a", Key: "b", Step: "d"},
	} {
		key := d.EffectKey()
		if other, ok := seen[key]; ok || len(key) != 64 {
			t.Errorf("EffectKey of %+v is %s, that of %+v", d, key, other)
		}
		seen[key] = d
	}
	first, second := Delivery{Scope: "a", Attempt: 1}, Delivery{Scope: "a", Attempt: 2, ID: "other"}
	if first.EffectKey() != second.EffectKey() {
		t.Error("EffectKey differs between attempts")
	}
	const want = "be708df07dc3cb9415007a9f2693b67b6e520fbe01bb15f8c137261b511eceb7" // a payment provider may have seen it
	if got := (&Delivery{Scope: "s", Key: "k", Step: "pay", N: "1"}).EffectKey(); got != want {
		t.Errorf("EffectKey = %s, want %s", got, want)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.step(f.effect("paid"), f.effect("refunded"))
	with := func(change func(*Step)) []Step {
		s := step
		change(&s)
		return []Step{s}
	}
	for name, tt := range map[string]struct {
		steps []Step
		opts  Options
	}{
		"at least one step": {},
		"Name":              {steps: with(func(s *Step) { s.Name = "Bad" })},
		"Action":            {steps: with(func(s *Step) { s.Action = Input{Topic: "x"} })},
		"Compensation":      {steps: with(func(s *Step) { s.Compensation = Input{Topic: "x"} })},
		"MaxAttempts":       {steps: with(func(s *Step) { s.MaxAttempts = -1 })},
		"RetryCap":          {steps: with(func(s *Step) { s.RetryBase, s.RetryCap = 2, 1 })},
		"Timeout":           {steps: with(func(s *Step) { s.Timeout = -1 })},
		"between 0 and 24h": {steps: with(func(s *Step) { s.Timeout = 25 * time.Hour })},
		"Emits":             {steps: with(func(s *Step) { s.Emits = []outbox.Output{{Type: "paid"}} })},
		"twice":             {steps: []Step{step, step}},
		"both take":         {steps: append(with(func(s *Step) { s.Name = "other" }), step)},
		"Schema":            {steps: []Step{step}, opts: Options{Schema: "a b"}},
		"Lanes":             {steps: []Step{step}, opts: Options{Lanes: -1}},
		"ParkedWorkers":     {steps: []Step{step}, opts: Options{ParkedWorkers: 1025}},
		"BatchBytes":        {steps: []Step{step}, opts: Options{BatchBytes: maxBatchBytes + 1}},
		"between 1 and":     {steps: []Step{step}, opts: Options{BatchBytes: -1}},
		"ParkedPoll":        {steps: []Step{step}, opts: Options{ParkedPoll: 1}},
		"ConnectionCheck":   {steps: []Step{step}, opts: Options{ConnectionCheck: time.Microsecond}},
		"DrainTimeout":      {steps: []Step{step}, opts: Options{DrainTimeout: -1}},
		"MaxPayload":        {steps: []Step{step}, opts: Options{MaxPayload: -1}},
	} {
		if _, err := New(f.pool, f.sub, tt.steps, &tt.opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New with a bad %s = %v", name, err)
		}
	}
}
