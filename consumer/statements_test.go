package consumer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/txguard"
	"github.com/sagamill/sagamill/outbox"
)

// What this package sends to the tables is recorded, so that the next migration is
// tested with it.
func TestStatementsAreRecorded(t *testing.T) {
	t.Parallel()
	const schema = "{schema}"
	pgtest.Record(t, "consumer", newQueries(schema, txguard.DefaultConnectionCheck), newEffectQueries(schema), newRetentionQueries(schema))
}

// sentSQL is a tracer that keeps the first two words of each statement.
type sentSQL struct {
	mu    sync.Mutex
	heads []string
}

func (s *sentSQL) note(sql string) {
	words := strings.Fields(sql)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads = append(s.heads, strings.Join(words[:min(2, len(words))], " "))
}

func (s *sentSQL) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.note(data.SQL)
	return ctx
}

func (*sentSQL) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*sentSQL) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *sentSQL) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.note(data.SQL)
}

func (*sentSQL) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A step alone costs three statements before its handler, and COMMIT. Only if the handler has used the transaction,
// COMMIT asks whether it is still the same one. An Effect's transaction before the call has no savepoint.
func TestStatementsOfAStepAlone(t *testing.T) {
	t.Parallel()
	claim := []string{"begin isolation", "INSERT INTO"}
	step := append(slices.Clip(claim), "SAVEPOINT sagamill_step")
	f := newFixture(t)
	provider := newProvider(t, true)
	for name, tt := range map[string]struct {
		step Step
		want []string
	}{
		"nothing": {f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return nil }, nil), append(slices.Clip(step), "commit")},
		"queued": {f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
			in.Queue("SELECT 'queued'")
			return nil
		}, nil), append(slices.Clip(step), "SELECT 'queued'", "SET LOCAL", "commit")},
		"direct": {f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
			_, err := tx.Exec(ctx, "SELECT 'direct'")
			return err
		}, nil), append(slices.Clip(step), "SELECT 'direct'", "SET LOCAL", "RELEASE SAVEPOINT", "commit")},
		"bare connection": {f.step(func(_ context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
			_ = tx.Conn()
			return nil
		}, nil), append(slices.Clip(step), "SET LOCAL", "RELEASE SAVEPOINT", "commit")},
		"effect": {f.effectStep(provider.url, false), append(slices.Clip(claim), "INSERT INTO", "WITH changed", "commit")},
	} {
		t.Run(name, func(t *testing.T) {
			tracer := &sentSQL{}
			config := f.pool.Config()
			config.ConnConfig.Tracer = tracer
			own := *f
			own.consumersPool(t, config)
			c := own.consumer(t, Options{}, tt.step)
			handle(t, c, sent(0, act(name)))
			got := tracer.heads[:min(len(tt.want), len(tracer.heads))]
			if name != "effect" { // whose call follows
				got = tracer.heads
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("statements, -want +got:\n%s", diff)
			}
		})
	}
}

// A message whose age is not known, or that was redelivered, needs the horizon, and a row that may exist its lock. The
// statement that reads them travels with the claim, and a row that was not expected costs another round trip.
func TestStatementsOfAClaim(t *testing.T) {
	t.Parallel()
	redelivered := func(msg *message.Message) *message.Message {
		msg.Metadata.Set(outbox.PropertyRedelivered, "true")
		return msg
	}
	const begin, claim, open, savepoint, release, ours = "begin isolation", "INSERT INTO", "SELECT nullif(h.swept_before,", "SAVEPOINT sagamill_step", "RELEASE SAVEPOINT", "SELECT set_config('row_security',"
	for name, tt := range map[string]struct {
		first, second *message.Message
		want          []string // of the second
	}{
		"new":                     {sent(0, act("other")), sent(0, act("k")), []string{begin, claim, savepoint, "commit"}},
		"old":                     {sent(0, act("other")), sent(recentAge, act("k")), []string{begin, claim, open, savepoint, "commit"}},
		"age unknown":             {sent(0, act("other")), act("k"), []string{begin, claim, open, savepoint, "commit"}},
		"expected copy":           {sent(0, act("k")), redelivered(sent(0, act("k"))), []string{ours, "SELECT attempts,", ours, "INSERT INTO", begin, claim, open, savepoint, "commit"}},
		"unexpected copy":         {sent(0, act("k")), sent(0, act("k")), []string{begin, claim, savepoint, release, open, savepoint, "commit"}},
		"compensation":            {sent(0, act("k")), sent(0, undo("k")), []string{begin, claim, open, savepoint, "WITH changed", "commit"}},
		"compensation of nothing": {sent(0, act("other")), sent(0, undo("k")), []string{begin, claim, open, savepoint, "commit"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := f.pool.Config()
			tracer := &sentSQL{}
			config.ConnConfig.Tracer = tracer
			f.consumersPool(t, config)
			none := func(context.Context, pgx.Tx, Message[payment], Emit) error { return nil }
			c := f.consumer(t, Options{}, f.step(none, none))
			handle(t, c, tt.first)
			tracer.heads = nil
			handle(t, c, tt.second)
			if diff := gocmp.Diff(tt.want, tracer.heads); diff != "" {
				t.Errorf("statements, -want +got:\n%s", diff)
			}
		})
	}
}

// A row that was not expected stays locked when the handler's work is rolled back. A message that is too old by the clock
// of the database is subject to the horizon, although this process took it for new.
func TestAClaimThatIsOpenedAfterwards(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts) VALUES ('tenant', 'open', 'process-payment', '', 'open', 2)")
	f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp() - interval '1 hour'")
	for key, tt := range map[string]struct {
		msg  *message.Message
		want verdict
	}{
		"open": {sent(0, act("open")), run},
		"old":  {sent(day, act("old")), outlived},
	} {
		a, rejected := readAttempt(c, "pay", tt.msg)
		if rejected != nil {
			t.Fatal(rejected)
		}
		err := c.executor.database.withConnection(t.Context(), func(conn *pgx.Conn) error {
			b := &pgx.Batch{}
			b.BeginTx(readCommitted)
			session := opened{}
			inserted, isOpen := c.executor.claimer.queueNewClaim(b, a, &session)
			b.Queue("SAVEPOINT " + stepSavepoint)
			results := conn.SendBatch(t.Context(), b)
			if err := results.Close(); err != nil {
				return err
			}
			if *isOpen || (*inserted == 1) != (key == "old") {
				t.Errorf("%s: opened %t, %d rows inserted", key, *isOpen, *inserted)
			}
			if err := c.executor.claimer.openAfterwards(t.Context(), results.Tx(), []*attempt{a}, &session); err != nil {
				return err
			}
			_, err := conn.Exec(t.Context(), "ROLLBACK TO SAVEPOINT "+stepSavepoint)
			if free := f.texts(t, "SELECT key FROM {schema}.inbox WHERE key = 'open' FOR UPDATE SKIP LOCKED"); key == "open" && len(free) > 0 {
				t.Error("the row is not locked behind the savepoint")
			}
			return err
		})
		if got := a.decideVerdict(); err != nil || got != tt.want {
			t.Errorf("%s: verdict %q, %v; want %q", key, got, err, tt.want)
		}
	}
}

// A step that succeeds when its first message arrives makes no parked message due, so the retrier need not look.
func TestASuccessWakesNoRetrier(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before string
		msgs   []*message.Message
		err    error
		want   int
	}{
		"a row that was there": {before: "INSERT INTO {schema}.inbox (scope, key, step, n, state) VALUES ('tenant', 'k', 'process-payment', '', 'open')",
			msgs: []*message.Message{sent(0, act("k"))}, want: 1},
		"alone":      {msgs: []*message.Message{sent(0, act("k"))}},
		"in a batch": {msgs: []*message.Message{sent(0, act("k")), sent(0, act("l"))}},
		"a failure":  {msgs: []*message.Message{sent(0, act("k"))}, err: errors.New("no"), want: 1},
		"a copy":     {msgs: []*message.Message{sent(0, act("k")), sent(0, act("k"))}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return tt.err }, nil))
			if tt.before != "" {
				f.exec(t, tt.before)
			}
			if acked := settle(t, c, tt.msgs...); len(acked) != len(tt.msgs) {
				t.Errorf("acked %q, want all", acked)
			}
			if got := len(c.executor.settler.retries); got != tt.want {
				t.Errorf("the retrier was woken: %d, want %d", got, tt.want)
			}
		})
	}
}
