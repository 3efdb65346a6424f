package idemredis

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/rediskey"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// newLossy returns a store behind a proxy, and one beside it.
func newLossy(t *testing.T) (p *redistest.Proxy, f, direct *fixture) {
	t.Helper()
	direct = newFixture(t)
	p, client := redistest.NewProxy(t)
	f = newFixtureOn(t, client, direct.client, Options{Prefix: direct.opts.Prefix, CallTimeout: 2 * time.Second})
	return p, f, direct
}

// The client repeats a script whose reply was lost. It finds what the first run
// did, and the caller does not notice.
func TestLostReply(t *testing.T) {
	t.Parallel()
	p, f, direct := newLossy(t)
	warm := direct.begin(t, idemkeytest.Claim("warm", "a")) // so that no reply to be lost is NOSCRIPT
	if err := errors.Join(warm.Renew(t.Context()), warm.Release(t.Context(), idemkey.Bound, 500)); err != nil {
		t.Fatal(err)
	}
	direct.commit(t, direct.begin(t, idemkeytest.Claim("warm", "a")))
	c := idemkeytest.Claim("k", "a")
	lost := 0
	lose := func() {
		t.Helper()
		if p.Lost() != lost {
			t.Fatalf("%d replies have been lost, want %d", p.Lost(), lost)
		}
		lost++
		p.Lose(redistest.LoseReply)
	}
	lose()
	e := f.begin(t, c)
	lose()
	if err := e.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	lose()
	if err := e.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Errorf("Release: %v", err)
	}
	lose()
	d := f.kind(t, c, idemkey.KindProceed)
	if d.Attempt != 2 {
		t.Errorf("Attempt = %d, want 2", d.Attempt)
	}
	lose()
	f.commit(t, d.Exec)
	lose()
	f.kind(t, c, idemkey.KindReplay)
	lose()
	direct.kind(t, c, idemkey.KindReplay)
}

// Without Redis a claim is an error and nothing runs; what has run is not
// stored, which is another error than a lost lease, and the record stays in
// progress for its lease.
func TestLostRedis(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]redistest.Loss{"replies": redistest.LoseReplies, "calls": redistest.LoseCalls, "hangs": redistest.Hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, f, direct := newLossy(t)
			owned, released := idemkeytest.Claim("owned", "a"), idemkeytest.Claim("released", "a")
			e, r := f.begin(t, owned), f.begin(t, released)
			f.opts.CallTimeout = 200 * time.Millisecond // of what gets no answer
			p.Lose(loss)
			if d, err := f.Begin(t.Context(), idemkeytest.Claim("new", "a")); err == nil || d.Exec != nil {
				t.Errorf("Begin = %+v, %v; want an error", d, err)
			}
			if err := e.Renew(t.Context()); err == nil || errors.Is(err, idemkey.ErrLeaseLost) {
				t.Errorf("Renew = %v, want an error that is not ErrLeaseLost", err)
			}
			if err := e.Commit(t.Context(), idemkey.Response{Status: 200}); !errors.Is(err, idemkey.ErrNotStored) || errors.Is(err, idemkey.ErrLeaseLost) {
				t.Errorf("Commit = %v, want ErrNotStored without ErrLeaseLost", err)
			}
			if err := r.Release(t.Context(), idemkey.Bound, 500); err == nil {
				t.Error("Release: no error")
			}
			want := idemkey.KindInFlight
			if loss == redistest.LoseReplies {
				want = idemkey.KindReplay // it was kept, only nobody knows
			}
			direct.kind(t, owned, want)
		})
	}
}

// A Redis that comes back while a response is kept gets it.
func TestKeepRepeats(t *testing.T) {
	t.Parallel()
	p, f, direct := newLossy(t)
	c := idemkeytest.Claim("k", "a")
	e := f.begin(t, c)
	f.opts.CallTimeout = 100 * time.Millisecond
	p.Lose(redistest.Hang)
	calls := 0
	f.Store.client.AddHook(timeoutHook(func() {
		if calls++; calls == saves-1 {
			p.Lose(redistest.LoseNothing)
		}
	}))
	f.commit(t, e)
	direct.kind(t, c, idemkey.KindReplay)
}

// A timeoutHook is called after each command that ran out of time.
type timeoutHook func()

func (h timeoutHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h timeoutHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			h()
		}
		return err
	}
}

func (h timeoutHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// What this process has replayed once it can replay without Redis, if that was
// asked for: the record says how long it still holds.
func TestLocalReplays(t *testing.T) {
	t.Parallel()
	p, f, direct := newLossy(t)
	handler := func(s idemkey.Store) http.Handler {
		m, err := idemkey.New(s, &idemkey.Options{SingleTenant: true, Response: idemkey.ResponseOptions{LocalReplays: 1}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	}
	post := func(h http.Handler) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("x"))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	post(handler(direct))
	h := handler(f)
	post(h)
	p.Lose(redistest.LoseCalls)
	if w := post(h); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("without Redis: %d %s, want a replay", w.Code, w.Body)
	}
}

// A caller that has given up is told so, and that nothing is stored.
func TestKeepCancelled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.begin(t, idemkeytest.Claim("k", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Commit(ctx, idemkey.Response{Status: 200}); !errors.Is(err, idemkey.ErrNotStored) || !errors.Is(err, context.Canceled) {
		t.Errorf("Commit = %v, want ErrNotStored and Canceled", err)
	}
}

// A record that Redis has lost, and that is made again within its TTL, names the same sagas.
func TestARecordThatRedisHasLost(t *testing.T) {
	t.Parallel()
	f, c := newFixture(t), idemkeytest.Claim("k", "a")
	c.TTL = idemkey.MaxTTL // a border between two spans within the test would change the name
	first := f.kind(t, c, idemkey.KindProceed)
	f.commit(t, first.Exec)
	if err := f.client.Del(t.Context(), rediskey.Of(f.opts.Prefix, c.ID)).Err(); err != nil {
		t.Fatal(err)
	}
	if again := f.kind(t, c, idemkey.KindProceed); again.Incarnation != first.Incarnation {
		t.Errorf("the incarnation is %q, and was %q", again.Incarnation, first.Incarnation)
	}
}
