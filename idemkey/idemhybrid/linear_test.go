package idemhybrid

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest/lineartest"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/linearpgtest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

const (
	linearSchema = "IDEMHYBRID_TEST_LINEAR_SCHEMA"
	linearPrefix = "IDEMHYBRID_TEST_LINEAR_PREFIX"
	linearRedis  = "IDEMHYBRID_TEST_LINEAR_REDIS" // through the proxy
	linearPlant  = "IDEMHYBRID_TEST_LINEAR_PLANT"

	// Shorter than the pauses of instances and handlers, so that locks and
	// claims lapse while their owners are at work.
	linearGrace = 60 * time.Millisecond
	linearLease = 150 * time.Millisecond

	// A Redis that hangs must not use up the time of the clients. A busy machine needs more than 40 ms for a call that
	// connects: no call would succeed.
	linearCall = 100 * time.Millisecond

	// Shorter than the pauses between two faults, so that locks are taken again in between.
	linearRetryPause = 10 * time.Millisecond

	// The pauses between two faults of Redis.
	unlockPause = 15 * time.Millisecond
	linkPause   = 120 * time.Millisecond
)

// Bugs that a test plants in the store.
const (
	plantLock = "trusts the lock"                    // who has the lock runs, whatever the row says
	plantShed = "sheds without a look at the row"    // a lock that is taken means in flight
	plantOpen = "runs unprotected while Redis fails" // nobody decides then
)

// linearFaults kill an instance at each point of a request, some of them after
// it has hung past its lock or its grace.
var linearFaults = []string{
	"idemhybrid/after-lock=kill:3",
	"idempg/after-claim=kill:3",
	"test/in-handler=kill:3",
	"idempg/before-commit=kill:3",
	"idempg/after-commit=kill:3", // the lock remains
	"idemhybrid/after-lock=stop:1;test/in-handler=kill:3",
	"idempg/after-claim=stop:1;test/in-handler=kill:3",
}

func TestMain(m *testing.M) {
	if schema := os.Getenv(linearSchema); schema != "" {
		if err := serveLinear(schema); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveLinear is the main of an instance.
func serveLinear(schema string) error {
	opts, err := redis.ParseURL(os.Getenv(linearRedis))
	if err != nil {
		return err
	}
	opts.ContextTimeoutEnabled, opts.MaxRetries = true, 1
	client := redis.NewClient(opts)
	defer client.Close()
	in := linearpgtest.Instance{Schema: schema, Tx: idempg.Tx, Point: func() { _ = failpoint.Hit("test/in-handler") }}
	in.Options.Limits.Lease = linearLease
	in.Open = func(pool *pgxpool.Pool) (idemkey.Store, error) {
		pg, err := idempg.New(pool, &idempg.Options{Schema: schema, Grace: linearGrace, AcquireTimeout: 200 * time.Millisecond})
		if err != nil {
			return nil, err
		}
		s, err := New(pg, client, &Options{
			Prefix: os.Getenv(linearPrefix), CallTimeout: linearCall, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return nil, err
		}
		s.circuit.pause = linearRetryPause
		if plant := os.Getenv(linearPlant); plant != "" {
			return &faulty{s, plant}, nil
		}
		return s, nil
	}
	return in.Serve()
}

// A weather is what becomes of Redis during a storm: locks vanish under their
// owners, and the link is cut or hangs.
type weather struct {
	proxy   *redistest.Proxy
	direct  *redis.Client
	prefix  string
	unlocks atomic.Int64
	cuts    [redistest.Hang + 1]atomic.Int64 // how often each loss has lost something
}

// newWeather returns a weather that has not begun.
func newWeather(t *testing.T) *weather {
	t.Helper()
	w := &weather{direct: redistest.Client(t), prefix: redistest.Prefix(t)}
	w.proxy, _ = redistest.NewProxy(t)
	return w
}

// blow lets faults strike until the test ends.
func (w *weather) blow(t *testing.T, losses ...redistest.Loss) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { w.unlock(ctx) })
	wg.Go(func() { w.cut(ctx, losses) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// unlock deletes locks, regardless of their owner.
func (w *weather) unlock(ctx context.Context) {
	for backoff.Sleep(ctx, unlockPause) == nil {
		keys := w.direct.Scan(ctx, 0, w.prefix+"*", 1000).Iterator()
		for keys.Next(ctx) {
			if rand.N(2) == 0 {
				w.unlocks.Add(w.direct.Del(ctx, keys.Val()).Val())
			}
		}
	}
}

// cut breaks the link now and then, in each way in turn.
func (w *weather) cut(ctx context.Context, losses []redistest.Loss) {
	for i := 0; len(losses) > 0 && backoff.Sleep(ctx, rand.N(2*linkPause)) == nil; i++ {
		loss, before := losses[i%len(losses)], w.proxy.Lost()
		w.proxy.Lose(loss)
		_ = backoff.Sleep(ctx, linkPause)
		w.proxy.Lose(redistest.LoseNothing)
		w.cuts[loss].Add(int64(w.proxy.Lost() - before))
	}
}

// struck tells a storm what has happened.
func (w *weather) struck() map[string]int {
	return map[string]int{
		"lock deleted": int(w.unlocks.Load()), "Redis replies lost": int(w.cuts[redistest.LoseReplies].Load()),
		"Redis calls lost": int(w.cuts[redistest.LoseCalls].Load()), "Redis hangs": int(w.cuts[redistest.Hang].Load()),
	}
}

func linearConfig(r *linearpgtest.Run, w *weather, plant string) lineartest.Config {
	return lineartest.Config{Command: linearpgtest.Command(
		linearSchema+"="+r.Schema, linearPrefix+"="+w.prefix, linearRedis+"="+w.proxy.URL(), linearPlant+"="+plant)}
}

// Whatever dies or hangs, processes, locks or the link to Redis: what clients see
// of each key is what one cell would have answered, and the business rows agree.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	r, w := linearpgtest.New(t), newWeather(t)
	c := linearConfig(r, w, "")
	c.Injected = w.struck
	w.blow(t, redistest.LoseReplies, redistest.LoseCalls, redistest.Hang)
	r.Prove(t, c, linearFaults)
}

// A store with a bug does not get through.
func TestLinearizableFindsBugs(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for _, plant := range []string{plantLock, plantShed, plantOpen} {
		t.Run(plant, func(t *testing.T) {
			t.Parallel()
			r, w := linearpgtest.New(t), newWeather(t)
			c := linearConfig(r, w, plant)
			c.Calm, c.Least = true, time.Second
			c.Enough = func(history []lineartest.Op) bool {
				return errors.Is(lineartest.Check(history), lineartest.ErrNotLinear)
			}
			switch plant {
			case plantOpen:
				w.blow(t, redistest.LoseCalls)
			default:
				w.blow(t)
			}
			report, err := lineartest.Storm(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if err := lineartest.Check(report.History); !errors.Is(err, lineartest.ErrNotLinear) {
				t.Errorf("Check of %v = %v, want ErrNotLinear", report, err)
			}
			if err := r.Audit(t, report.History); plant != plantShed && err == nil {
				t.Error("Audit found nothing")
			}
		})
	}
}

// A faulty store has a bug.
type faulty struct {
	*Store
	plant string
}

func (f *faulty) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	l := f.newLock(&c)
	busy, err := l.takeLock(ctx)
	switch {
	case busy > 0 && f.plant == plantShed:
		return idemkey.Decision{Kind: idemkey.KindInFlight, RetryAfter: busy}, nil
	case busy > 0:
		return f.shedDuplicate(ctx, &c, busy)
	}
	unprotected := err != nil && f.plant == plantOpen
	d, err := idemkey.Decision{Kind: idemkey.KindInFlight}, error(nil)
	if !unprotected {
		d, err = f.pg.Begin(ctx, c)
	}
	if err == nil && d.Kind == idemkey.KindInFlight && (unprotected || f.plant == plantLock) {
		c.ID.Key = ""
		d, err = f.pg.Begin(ctx, c)
	}
	if err != nil || d.Exec == nil {
		_ = l.freeLock(ctx)
		return d, err
	}
	d.Exec = &execution{Execution: d.Exec, lock: l}
	return d, nil
}
