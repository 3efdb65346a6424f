package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// waitBlocked waits until a statement that contains what waits for a lock.
func (f *fixture) waitBlocked(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		n := f.texts(t, "SELECT pid::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"+f.schema+"%' AND query LIKE $1", "%"+what+"%")
		if len(n) > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits in %s", what)
		}
	}
}

// A row goes between the moment in which a redelivery begins its claim and the
// one in which it reads the horizon: it sees the one or the other. That the
// database's transactions are REPEATABLE READ by default makes no difference.
func TestARowGoesWhileItIsClaimed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lock, waits string
		again       bool
	}{
		"before the insertion": {"DELETE FROM {schema}.inbox", "INSERT INTO", false},
		"before the lock":      {"SELECT FROM {schema}.inbox FOR UPDATE", "FOR UPDATE", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := pgtest.DirectConfig(t)
			config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
			f.consumersPool(t, config)
			c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
			msg := sent(20*day, act("k"))
			handle(t, c, msg.Copy())
			f.age(t, 20*day)
			sweep, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sweep.Rollback(context.Background()) }()
			in := func(statement string) {
				if _, err := sweep.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema)); err != nil {
					t.Fatal(err)
				}
			}
			in(tt.lock)
			handled := make(chan error, 1)
			go func() { handled <- c.Handle(t.Context(), "pay", msg.Copy()) }()
			f.waitBlocked(t, tt.waits)
			f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp() - interval '1 day'")
			in("DELETE FROM {schema}.inbox")
			if err := sweep.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-handled; (err != nil) != tt.again {
				t.Errorf("Handle: %v, want an error: %t", err, tt.again)
			}
			handle(t, c, msg.Copy()) // after an error nothing is decided
			compareStored(t, stored{Parked: "dead action too-old 0", Effects: "paid k 1"}, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
		})
	}
}

// An open row that another transaction holds while it is claimed is locked in its newest version, and is subject to
// the horizon from before it.
func TestARowMovesWhileItIsClaimed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		move string
		want stored
	}{
		"it stays":                 {"SELECT", stored{Row: "done 3 0", Effects: "paid k 1"}},
		"another entry is counted": {"UPDATE {schema}.inbox SET attempts = attempts + 1", stored{Row: "done 4 0", Effects: "paid k 1"}},
		"it is done":               {"UPDATE {schema}.inbox SET state = 'done', digest = sha256('')", stored{Row: "done 2 0", Parked: "dead action key-reused 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
			f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts) VALUES ('tenant', 'k', 'process-payment', '', 'open', 2)")
			other, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Rollback(context.Background()) }()
			in := func(statement string) {
				if _, err := other.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema)); err != nil {
					t.Fatal(err)
				}
			}
			in("SELECT FROM {schema}.inbox FOR UPDATE")
			handled := make(chan error, 1)
			go func() { handled <- c.Handle(t.Context(), "pay", sent(day, act("k"))) }()
			f.waitBlocked(t, "FOR UPDATE")
			f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp()")
			in(tt.move)
			if err := other.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-handled; err != nil {
				t.Error(err)
			}
			compareStored(t, tt.want, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
		})
	}
}

// A claim without a horizon, alone and in a batch, says which table is empty.
func TestAClaimNeedsAHorizon(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	f.exec(t, "DELETE FROM {schema}.inbox_horizon")
	for _, keys := range [][]string{{"k"}, {"k", "l"}} {
		var attempts []*attempt
		for _, key := range keys {
			m, rejected, err := c.receiver.receive("pay", act(key))
			if rejected != nil || err != nil {
				t.Fatal(rejected, err)
			}
			attempts = append(attempts, newAttempt(m))
		}
		err := c.executor.database.withConnection(t.Context(), func(conn *pgx.Conn) error {
			_, err := c.executor.claimer.openTransaction(t.Context(), conn, attempts)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "table inbox_horizon is empty") {
			t.Errorf("%d claims: %v, want an error that names inbox_horizon", len(keys), err)
		}
	}
}

// consumersPool makes another pool the fixture's.
func (f *fixture) consumersPool(t *testing.T, config *pgxpool.Config) {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f.pool = pool
}

// sweeps counts what passes have removed.
type sweeps struct {
	removed atomic.Int64
	passes  atomic.Int64
}

func (s *sweeps) Swept(_ context.Context, p Swept) {
	s.removed.Add(int64(p.Removed))
	s.passes.Add(1)
}

// Consumers, whose rows are old as soon as they are written, and sweepers of
// different settings at work at once: every message is delivered again and again,
// and has one effect.
func TestSweepersBesideConsumers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const keys, rounds, margin = 60, 6, 40 * day
	// Time passes for rows as they are written: those of the past rounds are old.
	f.exec(t, `CREATE FUNCTION {schema}.long_ago() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN NEW.updated_at := NEW.updated_at - interval '40 days'; RETURN NEW; END $$`)
	f.exec(t, "CREATE TRIGGER long_ago BEFORE INSERT OR UPDATE ON {schema}.inbox FOR EACH ROW EXECUTE FUNCTION {schema}.long_ago()")
	seen := &sweeps{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range 3 {
		s := f.sweeper(t, SweeperOptions{Interval: time.Millisecond, Retention: time.Duration(1+9*i) * day, Observer: seen})
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	defer running.Wait()
	defer cancel()
	c := f.consumer(t, Options{Lanes: 6}, f.step(f.effect("paid"), nil))
	c.signals.settled.Enable()
	stop := start(t, c)
	for round := range rounds {
		for k := range keys {
			msg := sent(margin, act(fmt.Sprint(k)))
			if round%2 == 1 { // alone; the others share transactions
				msg.Metadata.Set("redelivered", "true")
			}
			f.sub.queue("pay") <- msg
		}
		for range keys {
			c.signals.settled.Wait(t)
		}
	}
	stop()
	if got := f.texts(t, "SELECT what || ': ' || count(*) FROM {schema}.effect GROUP BY what HAVING count(*) > 1"); len(got) > 0 {
		t.Errorf("effects that happened more than once: %q", got)
	}
	ran, dead := f.texts(t, "SELECT what FROM {schema}.effect"), f.texts(t, "SELECT DISTINCT key FROM {schema}.parked WHERE state = 'dead' AND reason = 'too-old'")
	refused := map[string]bool{}
	for _, key := range dead {
		refused[key] = true
	}
	for k := range keys {
		if !slices.Contains(ran, fmt.Sprintf("paid %d 1", k)) && !refused[fmt.Sprint(k)] {
			t.Errorf("message %d left no trace", k)
		}
	}
	if got := f.texts(t, "SELECT reason FROM {schema}.parked GROUP BY reason, key, message_id HAVING count(*) > 1 OR reason <> 'too-old'"); len(got) > 0 {
		t.Errorf("dead letters that are not too old, or double: %q", got)
	}
	if len(ran) == 0 || len(dead) == 0 || seen.removed.Load() == 0 {
		t.Errorf("void: %d ran, %d refused, %d rows removed", len(ran), len(dead), seen.removed.Load())
	}
}

// Whatever the plan, a stretch reads its own blocks of the inbox and nothing else.
func TestASweepReadsOnlyItsBlocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, digest, updated_at)
		SELECT 's', i::text, 'step', '', 'done', decode(repeat('00', 32), 'hex'), clock_timestamp() - i * interval '1 minute' FROM generate_series(1, 20000) AS i`)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT 'dead', 'action', scope, key, step, n, 't', '', '{}', '{}', '', 'r', clock_timestamp() FROM {schema}.inbox WHERE key::int % 4 = 0`)
	f.exec(t, "ANALYZE {schema}.inbox")
	f.exec(t, "ANALYZE {schema}.parked")
	f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = clock_timestamp()")
	q := newRetentionQueries(f.schema)
	for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
		for name, tt := range map[string]struct{ statement, args string }{
			"find":   {q.findOld, "('(64,0)', '(128,0)', clock_timestamp())"},
			"remove": {q.removeOld, "('(64,0)', '(128,0)', clock_timestamp(), 0)"},
		} {
			plan := f.explain(t, mode, tt.statement, tt.args)
			for _, bad := range []string{"Seq Scan on inbox", "Seq Scan on parked", "Sort", "Index Scan on inbox"} {
				if slices.Contains(plan, bad) {
					t.Errorf("%s, %s: %s in %q", name, mode, bad, plan)
				}
			}
			if !slices.Contains(plan, "Tid Range Scan on inbox") || !slices.ContainsFunc(plan, func(s string) bool { return strings.HasPrefix(s, "Index") && strings.HasSuffix(s, " on parked") }) {
				t.Errorf("%s, %s: %q", name, mode, plan)
			}
		}
	}
}

// explain returns the nodes of a plan as type and relation.
func (f *fixture) explain(t *testing.T, mode, statement, args string) (nodes []string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		for _, s := range []string{"SET LOCAL plan_cache_mode = " + mode, "PREPARE explained AS " + statement} {
			if _, err := tx.Exec(t.Context(), s); err != nil {
				return err
			}
		}
		var out []byte
		if err := tx.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE explained"+args).Scan(&out); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), "DEALLOCATE explained"); err != nil {
			return err
		}
		var plan any
		if err := json.Unmarshal(out, &plan); err != nil {
			return err
		}
		nodes = planNodes(plan)
		return nil
	})
	if err != nil {
		t.Fatalf("explain: %v", err)
	}
	return nodes
}

func planNodes(plan any) (nodes []string) {
	switch v := plan.(type) {
	case []any:
		for _, e := range v {
			nodes = append(nodes, planNodes(e)...)
		}
	case map[string]any:
		if typ, ok := v["Node Type"].(string); ok {
			if on, ok := v["Relation Name"].(string); ok {
				typ += " on " + on
			}
			nodes = append(nodes, typ)
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			nodes = append(nodes, planNodes(v[k])...)
		}
	}
	return nodes
}

// A turn is left out where another sweeper has just made one, and the next is put
// off to when there will be something to remove.
func TestATurnOfASweeper(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	handle(t, c, act("a"))
	f.age(t, 20*day)
	seen := &sweeps{}
	s := f.sweeper(t, SweeperOptions{Interval: time.Hour, Retention: 10 * day, Observer: seen})
	turn := func(wantPasses, wantRemoved int64, least, most time.Duration) {
		t.Helper()
		rest, err := s.sweepIfDue(t.Context())
		if err != nil || seen.passes.Load() != wantPasses || seen.removed.Load() != wantRemoved || rest < least || rest > most {
			t.Errorf("turn: rest %s, %v, after %d passes with %d removed; want %s to %s, %d and %d",
				rest, err, seen.passes.Load(), seen.removed.Load(), least, most, wantPasses, wantRemoved)
		}
	}
	turn(1, 1, 0, 0) // an empty inbox says nothing about the next row
	handle(t, c, sent(0, act("b")))
	f.age(t, 10*day-2*time.Hour)
	turn(2, 1, 119*time.Minute, 2*time.Hour) // b is old in two hours
	f.age(t, 3*time.Hour)
	turn(3, 2, 0, 0)
	handle(t, c, sent(0, act("c")))
	f.age(t, 10*day+time.Second)
	turn(4, 3, 0, 0)
	handle(t, c, sent(0, act("d")))
	f.age(t, 11*day)
	turn(4, 3, 0, 0) // the last one has just been
	if n, err := s.Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("Sweep = %d, %v; want what is old, whoever has just swept", n, err)
	}
}

// A sweep skips a locked row, and makes no transaction wait.
func TestASweepDoesNotWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	handle(t, c, act("locked"), act("free"))
	f.age(t, 60*day)
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT FROM "+f.schema+".inbox WHERE key = 'locked' FOR UPDATE"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		n, err := f.sweeper(t, SweeperOptions{}).Sweep(ctx)
		if n != 1 || err != nil {
			t.Errorf("Sweep = %d, %v; want the row that is free", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.texts(t, "SELECT key FROM {schema}.inbox"); !slices.Equal(got, []string{"locked"}) {
		t.Errorf("left: %q", got)
	}
}

// Passes that fail are logged and made again; Run ends with its context.
func TestSweeperRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	handle(t, c, act("a"))
	f.age(t, 60*day)
	f.exec(t, "ALTER TABLE {schema}.inbox RENAME TO elsewhere")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed, done := make(chan string, 100), make(chan error, 1)
	removed := make(chan Swept, 100)
	s := f.sweeper(t, SweeperOptions{
		Interval: 2 * time.Millisecond, Observer: sweptTo(removed),
		Logger: slog.New(slog.NewTextHandler(writerTo(failed), nil)),
	})
	go func() { done <- s.Run(ctx) }()
	if line := <-failed; !strings.Contains(line, "old rows of the inbox could not be deleted") {
		t.Errorf("log %q", line)
	}
	f.exec(t, "ALTER TABLE {schema}.elsewhere RENAME TO inbox")
	pass := <-removed
	for pass.Removed == 0 {
		pass = <-removed
	}
	if pass.Removed != 1 || pass.Took <= 0 || time.Since(pass.Horizon) < 59*day {
		t.Errorf("pass %+v", pass)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

type sweptTo chan<- Swept

func (c sweptTo) Swept(_ context.Context, p Swept) {
	select {
	case c <- p:
	default:
	}
}

type writerTo chan<- string

func (c writerTo) Write(b []byte) (int, error) {
	select {
	case c <- string(b):
	default:
	}
	return len(b), nil
}

func TestNewSweeperRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := NewSweeper(nil, nil); err == nil {
		t.Error("NewSweeper accepted no pool")
	}
	if _, err := NewSweeper(f.pool, nil); err != nil {
		t.Errorf("NewSweeper without options: %v", err)
	}
	for field, opts := range map[string]SweeperOptions{
		"Schema": {Schema: "a b"}, "Retention": {Retention: MinRetention - 1}, "Interval": {Interval: -1},
	} {
		if _, err := NewSweeper(f.pool, &opts); err == nil || !strings.Contains(err.Error(), "option "+field+":") {
			t.Errorf("NewSweeper = %v, want an error that names %s", err, field)
		}
	}
}

// The row that has counted an entry may be swept before the entry is made. It counts
// nevertheless: there is no message with less than no attempts.
func TestACountedEntryWhoseRowIsGone(t *testing.T) {
	t.Parallel()
	for _, kind := range []kind{action, compensation} {
		j := attempt{received: received{route: route{kind: kind}}, counted: true}
		if got := j.countEntries(); got != 1 {
			t.Errorf("%s: %d attempts, want 1", kind, got)
		}
	}
}
