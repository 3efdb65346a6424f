package idempg

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A fixture is a store in a schema of its own, and a table of business rows.
type fixture struct {
	*Store
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

const sqlCreateBusiness = "CREATE TABLE {schema}.business (key text NOT NULL, n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"

func newFixture(t *testing.T, opts Options) *fixture {
	t.Helper()
	pool, schema := pgtest.Schema(t, sqlCreateBusiness)
	return newFixtureOn(t, pool, schema, opts)
}

func newFixtureOn(t *testing.T, pool *pgxpool.Pool, schema string, opts Options) *fixture {
	t.Helper()
	opts.Schema = schema
	s, err := New(pool, &opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return &fixture{Store: s, t: t, pool: pool, schema: schema}
}

// Begin sees to it that a test which leaves an execution open, on purpose or by
// failing, can still close its pool.
func (f *fixture) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := f.Store.Begin(ctx, c)
	if e, ok := d.Exec.(*execution); ok {
		f.t.Cleanup(e.endExecution)
	}
	return d, err
}

// held is how many places and connections are in use.
func (f *fixture) held() int { return len(f.slot) + int(f.pool.Stat().AcquiredConns()) }

func (f *fixture) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// rows counts the business rows of key.
func (f *fixture) rows(t testing.TB, key string) int {
	t.Helper()
	var n int
	err := f.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+f.schema+".business WHERE key = $1", key).Scan(&n)
	if err != nil {
		t.Fatalf("count business rows: %v", err)
	}
	return n
}

func (f *fixture) lapse(t testing.TB, id idemkey.Identity) {
	t.Helper()
	f.exec(t, "UPDATE "+f.schema+".idempotency_key SET lease_until = clock_timestamp() WHERE (namespace, scope, key) = ($1, $2, $3)",
		id.Namespace, id.Scope, id.Key)
}

func (f *fixture) expire(t testing.TB, id idemkey.Identity) {
	t.Helper()
	f.exec(t, "UPDATE "+f.schema+".idempotency_key SET expires_at = clock_timestamp() WHERE (namespace, scope, key) = ($1, $2, $3)",
		id.Namespace, id.Scope, id.Key)
}

func (f *fixture) damage(t testing.TB, id idemkey.Identity) {
	t.Helper()
	f.exec(t, "UPDATE "+f.schema+".idempotency_key SET state = 7 WHERE (namespace, scope, key) = ($1, $2, $3)", id.Namespace, id.Scope, id.Key)
}

// crash cuts the owner's connection. The update of the lease waits until the
// server has rolled back and freed the row, and so does the other lock.
func (f *fixture) crash(t testing.TB, id idemkey.Identity, exec idemkey.Execution) {
	t.Helper()
	conn := exec.(*execution).conn.Conn()
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatalf("cut connection: %v", err)
	}
	f.lapse(t, id)
	f.exec(t, "SELECT pg_advisory_lock($1), pg_advisory_unlock($1)", f.lockKey(id))
}

func TestStore(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"default":         {},
		"repeatable read": {Isolation: pgx.RepeatableRead},
		"serializable":    {Isolation: pgx.Serializable},
		"inline":          {ClaimMode: ClaimInline},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
				f := newFixture(t, opts)
				return idemkeytest.Subject{Store: f, Crash: f.crash, Expire: f.expire, Held: f.held, Damage: f.damage}
			})
		})
	}
}

func TestQueries(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newQueries(schema))
}

// A service learns at its start that its schema is missing.
func TestCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	if err := f.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	f.exec(t, "DROP TABLE "+f.schema+".idempotency_key")
	if err := f.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "migrations.Up") || !strings.Contains(err.Error(), f.schema) {
		t.Errorf("Check without the table: %v, want what to do, and where", err)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL())
	if _, err := New(nil, nil); err == nil {
		t.Error("New accepted no pool")
	}
	if _, err := New(pool, nil); err != nil {
		t.Errorf("New without options: %v", err)
	}
	for field, opts := range map[string]Options{
		"Schema":          {Schema: "no; schema"},
		"Isolation":       {Isolation: pgx.ReadUncommitted},
		"ClaimMode":       {ClaimMode: 7},
		"Isolation: ":     {ClaimMode: ClaimInline, Isolation: pgx.Serializable},
		"MaxInFlight":     {MaxInFlight: 1000},
		"Grace":           {Grace: -time.Second},
		"AcquireTimeout":  {AcquireTimeout: time.Microsecond},
		"SweepBatch":      {SweepBatch: -1},
		"ConnectionCheck": {ConnectionCheck: 1},
		"MaxPerScope":     {MaxPerScope: -1},
	} {
		_, err := New(pool, &opts)
		if want := "Options." + field; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error that names %s", err, want)
		}
	}
}

// begin is Begin of a claim that must proceed.
func (f *fixture) begin(t *testing.T, c idemkey.Claim) *execution {
	t.Helper()
	d, err := f.Begin(t.Context(), c)
	if err != nil || d.Kind != idemkey.KindProceed {
		t.Fatalf("Begin = %d, %v; want to proceed", d.Kind, err)
	}
	return d.Exec.(*execution)
}

func (f *fixture) kind(t *testing.T, c idemkey.Claim, want idemkey.Kind) {
	t.Helper()
	if d, err := f.Begin(t.Context(), c); err != nil || d.Kind != want {
		t.Errorf("Begin = %d, %v; want %d", d.Kind, err, want)
	}
}

// A held row lock keeps an owner safe whose lease has long run out.
func TestRowLockOutlivesLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	c := idemkeytest.Claim("k", "a")
	owner := f.begin(t, c)
	g := newFixtureOn(t, f.pool, f.schema, Options{Grace: time.Millisecond})
	c2 := idemkeytest.Claim("k2", "a")
	owner2 := g.begin(t, c2)
	if err := owner2.tx.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.pool.Exec(t.Context(), "SELECT pg_sleep(0.01)"); err != nil { // the server's clock, not ours
		t.Fatal(err)
	}
	f.kind(t, c2, idemkey.KindInFlight)
	last := c2
	last.MaxAttempts = 1
	f.kind(t, last, idemkey.KindInFlight) // not of unknown outcome: it runs
	for _, e := range []*execution{owner, owner2} {
		if err := e.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
			t.Errorf("Commit: %v", err)
		}
	}
	f.kind(t, c2, idemkey.KindReplay)
}

// An owner that stalls before it has the row lock finds that it was overtaken
// and its transaction does nothing.
func TestOvertakenBeforeLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Grace: time.Hour})
	c := idemkeytest.Claim("k", "a")
	stalled := f.begin(t, c)
	f.kind(t, c, idemkey.KindInFlight)
	f.expire(t, c.ID)
	if n, err := f.Sweep(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("Sweep = %d, %v; want a live lease to stay", n, err)
	}
	other := &execution{s: f.Store, conn: stalled.conn, id: c.ID, token: newToken()}
	if life, err := f.takeOverRecord(t.Context(), other, &c, stalled.token, 2); life.claimWon() || err != nil {
		t.Errorf("takeOver within the lease = %v, %v", life, err)
	}
	f.lapse(t, c.ID)
	winner := f.begin(t, c)
	_, err := stalled.tx.Holder().Exec(t.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ($1)", "k")
	if !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("statement of an overtaken owner: %v, want ErrLeaseLost", err)
	}
	if err := stalled.Commit(t.Context(), idemkey.Response{Status: 200}); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Commit of an overtaken owner: %v, want ErrLeaseLost", err)
	}
	if err := winner.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	f.kind(t, c, idemkey.KindReplay)
	f.expectRows(t, "k", 0)
}

// The same, without a statement in between: the record alone tells.
func TestOvertakenIdle(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Grace: time.Hour})
	c := idemkeytest.Claim("k", "a")
	stalled := f.begin(t, c)
	f.lapse(t, c.ID)
	winner := f.begin(t, c)
	if err := stalled.Commit(t.Context(), idemkey.Response{Status: 200}); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Commit of an overtaken owner: %v, want ErrLeaseLost", err)
	}
	if err := winner.Commit(t.Context(), idemkey.Response{Status: 201}); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	f.kind(t, c, idemkey.KindReplay)
}

// A handler that asks for nothing gets its row lock all the same, long before
// the grace is over.
func TestOpenedEarly(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Grace: 400 * time.Millisecond})
	c := idemkeytest.Claim("k", "a")
	owner := f.begin(t, c)
	for !owner.tx.Began() {
		f.exec(t, "SELECT pg_sleep(0.01)")
	}
	f.exec(t, "SELECT pg_sleep(0.5)") // the lease runs out by the server's clock
	f.kind(t, c, idemkey.KindInFlight)
	if err := owner.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
		t.Errorf("Commit: %v", err)
	}
	f.kind(t, c, idemkey.KindReplay)
}

// A claim in the owner's process does not wait for a COMMIT. One in another
// process may, and then has the outcome.
func TestBeginDuringCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	other := newFixtureOn(t, f.pool, f.schema, Options{})
	c := idemkeytest.Claim("k", "a")
	owner := f.begin(t, c)
	if ok, err := owner.keepResponse(t.Context(), owner.tx.Holder(), &idemkey.Response{Status: 200, Header: http.Header{}}); !ok || err != nil {
		t.Fatalf("keep = %t, %v", ok, err)
	}
	f.kind(t, c, idemkey.KindInFlight)
	var wg sync.WaitGroup
	wg.Go(func() { other.kind(t, c, idemkey.KindReplay) })
	for waiting := false; !waiting; {
		err := f.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND transactionid = (SELECT xmax FROM "+f.schema+".idempotency_key))").Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := owner.tx.Commit(t.Context(), func(*pgx.Batch, string) {}); err != nil {
		t.Errorf("Commit: %v", err)
	}
	wg.Wait()
}

// While every place is taken, replays are still answered, duplicates told so, and new keys refused.
func TestCapacity(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCapacity(t, mode)
		})
	}
}

func testCapacity(t *testing.T, mode ClaimMode) {
	// The timeout is for a new connection too, which takes a while on a busy machine.
	f := newFixture(t, Options{MaxInFlight: 1, AcquireTimeout: time.Second, ClaimMode: mode})
	done := idemkeytest.Claim("done", "a")
	if err := f.begin(t, done).Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	running := f.begin(t, idemkeytest.Claim("running", "a"))
	f.kind(t, done, idemkey.KindReplay)
	f.kind(t, idemkeytest.Claim("running", "a"), idemkey.KindInFlight)
	other := newFixtureOn(t, f.pool, f.schema, Options{MaxInFlight: 1, AcquireTimeout: time.Second, ClaimMode: mode})
	elsewhere := other.begin(t, idemkeytest.Claim("elsewhere", "a")) // as by another process
	f.kind(t, idemkeytest.Claim("elsewhere", "a"), idemkey.KindInFlight)
	elsewhere.endExecution()
	for _, key := range []string{"new", ""} {
		if _, err := f.Begin(t.Context(), idemkeytest.Claim(key, "a")); !errors.Is(err, idemkey.ErrCapacity) {
			t.Errorf("Begin %q: %v, want ErrCapacity", key, err)
		}
	}
	if err := running.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Errorf("Release: %v", err)
	}
	f.begin(t, idemkeytest.Claim("new", "a")).endExecution()
}

// A pool that others have used up is a matter of capacity as well.
func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{AcquireTimeout: 50 * time.Millisecond})
	for range f.pool.Config().MaxConns {
		conn, err := f.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	if _, err := f.Begin(t.Context(), idemkeytest.Claim("k", "a")); !errors.Is(err, idemkey.ErrCapacity) {
		t.Errorf("Begin: %v, want ErrCapacity", err)
	}
}

// The handler's transaction is bounded, and keeps the session's lock_timeout.
func TestTransactionSettings(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	e := f.begin(t, idemkeytest.Claim("k", "a"))
	defer func() { _ = e.Release(context.WithoutCancel(t.Context()), idemkey.Bound, 500) }()
	for name, want := range map[string]string{
		"statement_timeout": "20s", "idle_in_transaction_session_timeout": "25s", "lock_timeout": "0",
		"client_connection_check_interval": "1s", "synchronous_commit": "on",
	} {
		var got string
		if err := e.tx.Holder().QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
}
