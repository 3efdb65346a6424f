package idemhybrid

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/rediskey"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// A fixture is a store in a schema and under a prefix of its own.
type fixture struct {
	*Store
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
	redis  redis.UniversalClient // direct, whatever is between the store and the server
}

// held is how many connections and locks are in use.
func (f *fixture) held() int {
	locks, err := f.redis.Keys(context.Background(), f.opts.Prefix+"*").Result()
	if err != nil {
		return -1
	}
	return len(locks) + int(f.pool.Stat().AcquiredConns())
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	client := redistest.Client(t)
	f := &fixture{t: t, pool: pool, schema: schema, redis: client}
	return f.with(client, Options{Prefix: redistest.Prefix(t), CallTimeout: time.Minute}) // no call ends by the clock
}

// with returns another store on the same table and prefix.
func (f *fixture) with(client redis.UniversalClient, opts Options) *fixture {
	f.t.Helper()
	pg, err := idempg.New(f.pool, &idempg.Options{Schema: f.schema})
	if err != nil {
		f.t.Fatalf("idempg.New: %v", err)
	}
	if f.Store != nil {
		opts.Prefix = f.opts.Prefix
	}
	s, err := New(pg, client, &opts)
	if err != nil {
		f.t.Fatalf("New: %v", err)
	}
	return &fixture{s, f.t, f.pool, f.schema, f.redis}
}

// Begin sees to it that a test which leaves an execution open, on purpose or by
// failing, can still close its pool.
func (f *fixture) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := f.Store.Begin(ctx, c)
	if d.Exec == nil {
		return d, err
	}
	e := &tracked{Execution: d.Exec}
	d.Exec = e
	f.t.Cleanup(func() {
		if !e.ended.Load() {
			_ = e.Release(context.WithoutCancel(f.t.Context()), idemkey.Bound, 500)
		}
	})
	return d, err
}

// A tracked execution knows that it has ended.
type tracked struct {
	idemkey.Execution
	ended atomic.Bool
}

func (e *tracked) Commit(ctx context.Context, r idemkey.Response) error {
	e.ended.Store(true)
	return e.Execution.Commit(ctx, r)
}

func (e *tracked) Reject(ctx context.Context, r idemkey.Response) error {
	e.ended.Store(true)
	return e.Execution.Reject(ctx, r)
}

func (e *tracked) Release(ctx context.Context, mode idemkey.ReleaseMode, status int) error {
	e.ended.Store(true)
	return e.Execution.Release(ctx, mode, status)
}

func (f *fixture) update(t testing.TB, column string, id idemkey.Identity) {
	t.Helper()
	_, err := f.pool.Exec(t.Context(), "UPDATE "+f.schema+".idempotency_key SET "+column+" = clock_timestamp() WHERE (namespace, scope, key) = ($1, $2, $3)",
		id.Namespace, id.Scope, id.Key)
	if err != nil {
		t.Fatalf("update %s: %v", column, err)
	}
}

func (f *fixture) expire(t testing.TB, id idemkey.Identity) {
	t.Helper()
	f.update(t, "expires_at", id)
}

func (f *fixture) damage(t testing.TB, id idemkey.Identity) {
	t.Helper()
	_, err := f.pool.Exec(t.Context(), "UPDATE "+f.schema+".idempotency_key SET state = 7 WHERE (namespace, scope, key) = ($1, $2, $3)",
		id.Namespace, id.Scope, id.Key)
	if err != nil {
		t.Fatalf("damage record: %v", err)
	}
}

// crash cuts the owner's connection and lets lock and lease lapse. The update
// waits until the server has freed the row.
func (f *fixture) crash(t testing.TB, id idemkey.Identity, exec idemkey.Execution) {
	t.Helper()
	if err := idempg.Tx(exec.Context(t.Context())).Conn().PgConn().Conn().Close(); err != nil {
		t.Fatalf("cut connection: %v", err)
	}
	f.unlock(t, id)
	f.update(t, "lease_until", id)
}

func (f *fixture) lockKey(id idemkey.Identity) string { return rediskey.Of(f.opts.Prefix, id) }

// unlock lets the lock lapse, regardless of its owner.
func (f *fixture) unlock(t testing.TB, id idemkey.Identity) {
	t.Helper()
	if err := f.redis.Del(t.Context(), f.lockKey(id)).Err(); err != nil {
		t.Fatalf("let lock lapse: %v", err)
	}
}

func (f *fixture) locked(t *testing.T, id idemkey.Identity, want bool) {
	t.Helper()
	n, err := f.redis.Exists(t.Context(), f.lockKey(id)).Result()
	if (n == 1) != want || err != nil {
		t.Errorf("%d locks of %s, %v; want one: %t", n, id.Key, err, want)
	}
}

func (f *fixture) kind(t *testing.T, c idemkey.Claim, want idemkey.Kind) idemkey.Decision {
	t.Helper()
	d, err := f.Begin(t.Context(), c)
	if err != nil || d.Kind != want {
		t.Fatalf("Begin = %d, %v; want %d", d.Kind, err, want)
	}
	return d
}

func commit(t *testing.T, e idemkey.Execution) {
	t.Helper()
	if err := e.Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
		t.Errorf("Commit: %v", err)
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
		f := newFixture(t)
		return idemkeytest.Subject{Store: f, Crash: f.crash, Expire: f.expire, Held: f.held, Damage: f.damage}
	})
}

// Without Redis it is the store in Postgres, and a logger that panics over that changes nothing.
func TestStoreWithoutRedis(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	guardtest.Covered(t, map[string]bool{"Options.Logger": true}, Options{})
	idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
		p, client := redistest.NewProxy(t)
		p.Lose(redistest.LoseCalls)
		f := newFixture(t).with(client, Options{CallTimeout: 20 * time.Millisecond, Logger: guardtest.Log(guardtest.Ways["panic"])})
		return idemkeytest.Subject{Store: f, Crash: f.crash, Expire: f.expire, Held: f.held, Damage: f.damage}
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	pg, err := idempg.New(pgtest.Pool(t, pgtest.URL()), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := redistest.Client(t)
	if _, err := New(nil, client, nil); err == nil {
		t.Error("New accepted no Postgres store")
	}
	if _, err := New(pg, nil, nil); err == nil {
		t.Error("New accepted no client")
	}
	if _, err := New(pg, client, nil); err != nil {
		t.Errorf("New without options: %v", err)
	}
	for field, opts := range map[string]Options{"Prefix": {Prefix: "{a}"}, "CallTimeout": {CallTimeout: time.Microsecond}} {
		_, err := New(pg, client, &opts)
		if want := "Options." + field; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error that names %s", err, want)
		}
	}
}

// A middleware on this store is one on Postgres: a handler may run for longer than
// its lease, and never without its transaction.
func TestTraits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := idemkey.New(f.Store, &idemkey.Options{SingleTenant: true, Limits: idemkey.Limits{Lease: time.Second, ExecTimeout: time.Minute}}); err != nil {
		t.Errorf("New for a handler longer than its lease: %v", err)
	}
	_, err := idemkey.New(f.Store, &idemkey.Options{SingleTenant: true, FailOpen: true})
	if err == nil || !strings.Contains(err.Error(), "Options.FailOpen") {
		t.Errorf("New to fail open = %v, want it refused", err)
	}
}

// A duplicate claims nothing while another has the lock: it is told what the
// record says, and of a record that would let it run, that it is in flight.
func TestShed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	hold := func() {
		t.Helper()
		if busy, err := f.newLock(&c).takeLock(t.Context()); busy != 0 || err != nil {
			t.Fatalf("take = %v, %v", busy, err)
		}
	}
	hold()
	for range 2 {
		if d := f.kind(t, c, idemkey.KindInFlight); d.RetryAfter <= 0 || d.RetryAfter > c.Lease {
			t.Errorf("RetryAfter = %v, want what is left of %v", d.RetryAfter, c.Lease)
		}
	}
	f.unlock(t, c.ID)
	d := f.kind(t, c, idemkey.KindProceed)
	if d.Attempt != 1 {
		t.Errorf("Attempt = %d, want 1: no duplicate may have claimed", d.Attempt)
	}
	commit(t, d.Exec)
	f.locked(t, c.ID, false)
	hold() // as one that died, or a reply that was lost, leaves it
	f.kind(t, c, idemkey.KindReplay)
	other := idemkeytest.Claim("k", "b")
	f.kind(t, other, idemkey.KindMismatch)
	f.locked(t, c.ID, true)
}

// A lock that has lapsed takes nothing from the owner: Postgres decides.
func TestLockLapsed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	owner := f.kind(t, c, idemkey.KindProceed).Exec
	f.unlock(t, c.ID)
	f.kind(t, c, idemkey.KindInFlight)
	f.locked(t, c.ID, false) // who is refused gives the lock back
	renewer := owner.(*tracked).Execution.(*execution)
	if err := renewer.Renew(t.Context()); err != nil {
		t.Errorf("Renew of a lapsed lock: %v", err)
	}
	other := f.newLock(&c)
	if busy, err := other.takeLock(t.Context()); busy != 0 || err != nil {
		t.Fatalf("take = %v, %v", busy, err)
	}
	if err := renewer.Renew(t.Context()); err != nil {
		t.Errorf("Renew of another's lock: %v", err)
	}
	commit(t, owner)
	f.locked(t, c.ID, true) // it is the other's
	f.kind(t, c, idemkey.KindReplay)
	if err := other.freeLock(t.Context()); err != nil {
		t.Errorf("free: %v", err)
	}
	f.locked(t, c.ID, false)
}

// The lock lasts for a lease from the last renewal, and ends with the execution.
func TestRenew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := idemkeytest.Claim("k", "a")
	d := f.kind(t, c, idemkey.KindProceed)
	key := f.lockKey(c.ID)
	if err := f.redis.PExpire(t.Context(), key, c.Lease/2).Err(); err != nil {
		t.Fatal(err)
	}
	e := d.Exec.(*tracked).Execution.(*execution)
	if err := e.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if left := f.redis.PTTL(t.Context(), key).Val(); left <= c.Lease/2 || left > c.Lease {
		t.Errorf("lock lasts %v, want about %v", left, c.Lease)
	}
	if err := d.Exec.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := e.Renew(t.Context()); err != nil {
		t.Errorf("late Renew: %v", err)
	}
	f.locked(t, c.ID, false)
	commit(t, f.kind(t, c, idemkey.KindProceed).Exec)
}

// Redis may be lost before the claim, while the handler runs or at its end, and
// with it the call or the reply: it runs once and is replayed.
func TestLostRedis(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]redistest.Loss{"replies": redistest.LoseReplies, "calls": redistest.LoseCalls, "hangs": redistest.Hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := newFixture(t)
			p, client := redistest.NewProxy(t)
			f := direct.with(client, Options{CallTimeout: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
			for _, at := range []string{"before", "during"} {
				p.Lose(redistest.LoseNothing)
				f.circuit.open = false
				kept, failed := idemkeytest.Claim(at+" kept", "a"), idemkeytest.Claim(at+" failed", "a")
				if at == "before" {
					p.Lose(loss)
				}
				k, r := f.kind(t, kept, idemkey.KindProceed).Exec, f.kind(t, failed, idemkey.KindProceed).Exec
				p.Lose(loss)
				if e, locked := k.(*tracked).Execution.(*execution); locked {
					if err := e.Renew(t.Context()); err != nil {
						t.Errorf("Renew: %v", err)
					}
				}
				direct.kind(t, kept, idemkey.KindInFlight)
				commit(t, k)
				direct.kind(t, kept, idemkey.KindReplay) // the lock may remain
				if err := r.Release(t.Context(), idemkey.Bound, 500); err != nil {
					t.Errorf("Release: %v", err)
				}
				direct.unlock(t, failed.ID)
				if d := direct.kind(t, failed, idemkey.KindProceed); d.Attempt != 2 {
					t.Errorf("Attempt = %d, want 2", d.Attempt)
				}
			}
		})
	}
}

// A lock works on a cluster, whose nodes refuse a call with keys of two slots, and on a server that has forgotten its scripts.
func TestServers(t *testing.T) {
	t.Parallel()
	server := redistest.Server(t)
	for name, client := range map[string]redis.UniversalClient{"cluster": redistest.Cluster(t), "flushed": server} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t).with(client, Options{RequireLock: true, CallTimeout: time.Minute})
			f.redis = client
			flush := func() {
				if client == server {
					server.ScriptFlush(t.Context())
				}
			}
			c := idemkeytest.Claim("k", "a")
			for _, end := range []func(idemkey.Execution) error{
				func(e idemkey.Execution) error { return e.Release(t.Context(), idemkey.Bound, 500) },
				func(e idemkey.Execution) error { return e.Commit(t.Context(), idemkey.Response{Status: 200}) },
			} {
				e := f.kind(t, c, idemkey.KindProceed).Exec
				f.locked(t, c.ID, true)
				flush()
				f.kind(t, c, idemkey.KindInFlight)
				flush()
				if err := f.redis.PExpire(t.Context(), f.lockKey(c.ID), c.Lease/2).Err(); err != nil {
					t.Fatal(err)
				}
				if err := e.(*tracked).Execution.(*execution).Renew(t.Context()); err != nil {
					t.Errorf("Renew: %v", err)
				}
				if left := f.redis.PTTL(t.Context(), f.lockKey(c.ID)).Val(); left <= c.Lease/2 {
					t.Errorf("lock lasts %v after its renewal, want about %v", left, c.Lease)
				}
				flush()
				if err := end(e); err != nil {
					t.Errorf("end: %v", err)
				}
				f.locked(t, c.ID, false)
				flush()
			}
			f.kind(t, c, idemkey.KindReplay)
		})
	}
}

// A lock that was taken although the reply was lost is known as one's own.
func TestLostLockReply(t *testing.T) {
	t.Parallel()
	direct := newFixture(t)
	p, client := redistest.NewProxy(t)
	f := direct.with(client, Options{CallTimeout: 5 * time.Second})
	commit(t, direct.kind(t, idemkeytest.Claim("warm", "a"), idemkey.KindProceed).Exec) // or NOSCRIPT is what is lost
	c := idemkeytest.Claim("k", "a")
	p.Lose(redistest.LoseReply)
	e := f.kind(t, c, idemkey.KindProceed).Exec
	if p.Lost() != 1 {
		t.Errorf("%d replies were lost, want 1", p.Lost())
	}
	f.locked(t, c.ID, true)
	commit(t, e)
	f.locked(t, c.ID, false)
}

// With RequireLock nothing runs without Redis, and nothing is left in the way
// of the retry.
func TestRequireLock(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]redistest.Loss{"replies": redistest.LoseReplies, "calls": redistest.LoseCalls} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := newFixture(t)
			p, client := redistest.NewProxy(t)
			f := direct.with(client, Options{RequireLock: true, CallTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
			p.Lose(loss)
			c := idemkeytest.Claim("k", "a")
			if d, err := f.Begin(t.Context(), c); err == nil || d.Exec != nil {
				t.Errorf("Begin = %+v, %v; want an error", d, err)
			}
			p.Lose(redistest.LoseNothing)
			if d := f.kind(t, c, idemkey.KindProceed); d.Attempt != 1 {
				t.Errorf("Attempt = %d, want 1", d.Attempt)
			}
		})
	}
}

// Without Postgres nothing runs, and the lock is given back.
func TestLostPostgres(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.pool.Close()
	c := idemkeytest.Claim("k", "a")
	if d, err := f.Begin(t.Context(), c); err == nil || d.Exec != nil {
		t.Errorf("Begin = %+v, %v; want an error", d, err)
	}
	f.locked(t, c.ID, false)
}

// A caller that has given up gets an error, not a claim in Postgres.
func TestBeginCancelled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := idemkeytest.Claim("k", "a")
	if d, err := f.Begin(ctx, c); err == nil || d.Exec != nil {
		t.Errorf("Begin = %+v, %v; want an error", d, err)
	}
	if f.circuit.open {
		t.Error("a cancelled call is taken for a lost Redis")
	}
}

// Losing Redis is one line in the log, and its return another.
func TestLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p, client := redistest.NewProxy(t)
	f := newFixture(t).with(client, Options{CallTimeout: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.Lose(redistest.LoseCalls)
	commit(t, f.kind(t, idemkeytest.Claim("a", "a"), idemkey.KindProceed).Exec)
	commit(t, f.kind(t, idemkeytest.Claim("b", "a"), idemkey.KindProceed).Exec)
	p.Lose(redistest.LoseNothing)
	f.circuit.probe = time.Time{}
	commit(t, f.kind(t, idemkeytest.Claim("c", "a"), idemkey.KindProceed).Exec)
	if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "does not answer") || !strings.Contains(got, "answers again") {
		t.Errorf("log = %s, want two lines", got)
	}
}

// Whatever the end, the lock is given back, also where the caller has no time left.
func TestLockFreed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, end := range map[string]func(idemkey.Execution) error{
		"commit":  func(e idemkey.Execution) error { return e.Commit(t.Context(), idemkey.Response{Status: 200}) },
		"reject":  func(e idemkey.Execution) error { return e.Reject(t.Context(), idemkey.Response{Status: 400}) },
		"release": func(e idemkey.Execution) error { return e.Release(t.Context(), idemkey.Forget, 400) },
		"late":    func(e idemkey.Execution) error { _ = e.Commit(cancelled, idemkey.Response{Status: 200}); return nil },
	} {
		c := idemkeytest.Claim(name, "a")
		e := f.kind(t, c, idemkey.KindProceed).Exec
		f.locked(t, c.ID, true)
		if err := end(e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f.locked(t, c.ID, false)
	}
}

// An acquiring is a tracer that panics when a connection is asked for the first time.
type acquiring struct{ blown atomic.Bool }

func (a *acquiring) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if a.blown.CompareAndSwap(false, true) {
		panic(guardtest.Value)
	}
	return ctx
}

func (*acquiring) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

func (*acquiring) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (*acquiring) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A claim that a hook of the pool ends leaves no lock: the next one is not told to wait.
func TestAPanicInAHookOfThePoolFreesTheLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := pgtest.DirectConfig(t)
	config.ConnConfig.Tracer = &acquiring{}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f.pool = pool
	f = f.with(f.redis, Options{CallTimeout: time.Minute})
	c := idemkeytest.Claim("k", "a")
	if end := guardtest.End(func() { _, _ = f.Store.Begin(t.Context(), c) }); end != guardtest.Value {
		t.Errorf("Begin ended with %v, want %v", end, guardtest.Value)
	}
	if n := f.held(); n != 0 {
		t.Errorf("%d locks and connections are in use", n)
	}
	commit(t, f.kind(t, c, idemkey.KindProceed).Exec)
}
