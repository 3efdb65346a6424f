package idemkey_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// A request that waits gets the response of the one in flight, or 409 when its
// time is over, or runs where the other failed.
func TestWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		takes  time.Duration
		answer int // of the first run
		status int // of the one that waited
		replay string
	}{
		{"replay", time.Second, 201, 201, "true"},
		{"too long", 3 * time.Second, 201, 409, ""},
		{"failed", time.Second, 500, 299, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Limits: idemkey.Limits{Wait: 2 * time.Second}})
				var wg sync.WaitGroup
				wg.Go(func() {
					send(t, m, func(w http.ResponseWriter, _ *http.Request) {
						time.Sleep(tt.takes)
						w.WriteHeader(tt.answer)
					}, "k", "x").expect(t, tt.answer, "")
				})
				synctest.Wait()
				got := send(t, m, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(299) }, "k", "x")
				if got.status != tt.status || got.header.Get("Idempotent-Replayed") != tt.replay {
					t.Errorf("waited for %d, replayed %q; want %d, %q", got.status, got.header.Get("Idempotent-Replayed"), tt.status, tt.replay)
				}
				wg.Wait()
			})
		})
	}
}

// Beyond the limits of the waiting room the answer comes at once.
func TestWaitLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Limits: idemkey.Limits{Wait: 2 * time.Second}})
		end := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { send(t, m, func(http.ResponseWriter, *http.Request) { <-end }, "k", "x").expect(t, 200, "") })
		synctest.Wait()
		for range idemkey.MaxWaitersPerKey {
			wg.Go(func() { send(t, m, created, "k", "x").expect(t, 200, "") })
		}
		synctest.Wait()
		before := time.Now()
		send(t, m, created, "k", "x").expect(t, 409, "in-progress")
		if time.Since(before) != 0 { // the bubble's clock stands still unless all wait
			t.Error("one more waited too")
		}
		close(end)
		wg.Wait()
	})
}

// errRecover is what a Recover could not find out.
var errRecover = errors.New("the bank does not answer")

// What becomes of a request whose earlier run vanished.
func TestRecover(t *testing.T) {
	t.Parallel()
	found := &idemkey.Response{Status: 202, Header: http.Header{"Location": {"/orders/7"}, "Set-Cookie": {"x"}}, Body: []byte("found")}
	for _, tt := range []struct {
		name    string
		effects bool
		recover func(context.Context, idemkey.Identity) (*idemkey.Response, error)
		status  int
		code    string
		result  idemkey.Result
	}{
		{"taken over", false, nil, 201, "", idemkey.ResultAgain},
		{"held", true, nil, 409, "outcome-unknown", idemkey.ResultUnknown},
		{"no effect", true, func(context.Context, idemkey.Identity) (*idemkey.Response, error) { return nil, nil }, 201, "", idemkey.ResultAgain},
		{"done", false, func(context.Context, idemkey.Identity) (*idemkey.Response, error) { return found, nil }, 202, "", idemkey.ResultRecovered},
		{"unknown", false, func(context.Context, idemkey.Identity) (*idemkey.Response, error) { return nil, errRecover }, 409, "outcome-unknown", idemkey.ResultUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, seen, log := newMemory(t, nil), &observer{}, newCapture()
			m := newMiddleware(t, store, idemkey.Options{ExternalEffects: tt.effects, Recover: tt.recover, Observer: seen, Logger: log.logger()})
			var owner idemkey.Identity
			vanish := make(chan struct{})
			go func() { // its process is as good as dead: it neither renews nor ends
				defer close(vanish)
				defer func() { _ = recover() }()
				send(t, newMiddleware(t, undead{store}, idemkey.Options{}), func(_ http.ResponseWriter, r *http.Request) {
					info, _ := idemkey.Info(r.Context())
					owner = info.Identity
					panic("crash")
				}, "k", "x")
			}()
			<-vanish
			store.Lapse(owner)
			got := send(t, m, created, "k", "x")
			got.expect(t, tt.status, tt.code)
			if seen.last.Result != tt.result {
				t.Errorf("result = %q, want %q", seen.last.Result, tt.result)
			}
			failed := tt.name == "unknown"
			if errors.Is(seen.last.Err, errRecover) != failed || strings.Contains(log.String(), `"level":"ERROR"`) != failed {
				t.Errorf("event has error %v, want Recover's: %t; log: %s", seen.last.Err, failed, log)
			}
			if tt.status < 300 {
				again := send(t, m, created, "k", "x")
				if again.body != got.body || again.header.Get("Idempotent-Replayed") != "true" || again.header.Get("Set-Cookie") != "" {
					t.Errorf("again = %+v, want a replay of %q", again, got.body)
				}
			}
		})
	}
}

// An answer that was found out is no replay if another owner has taken over
// meanwhile: that one may keep another.
func TestRecoverLost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end     error
		status  int
		code    string
		outcome idemkey.Outcome
	}{
		"lost":       {errors.Join(idemkey.ErrNotStored, idemkey.ErrLeaseLost), 409, "in-progress", idemkey.OutcomeLost},
		"not stored": {idemkey.ErrNotStored, 202, "", idemkey.OutcomeUnkept},
		"kept":       {nil, 202, "", idemkey.OutcomeKept},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := &observer{}
			sealer := idemkey.ResponseOptions{Sealer: lockedSealer{}} // keeps a tombstone
			m := newMiddleware(t, &vanished{stub{end: tt.end}}, idemkey.Options{Observer: seen, Response: sealer, Recover: func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
				return &idemkey.Response{Status: 202}, nil
			}})
			got := send(t, m, created, "k", "x")
			got.expect(t, tt.status, tt.code)
			if replayed := got.header.Get("Idempotent-Replayed") == "true"; replayed != (tt.status == 202) || seen.last.Outcome != tt.outcome {
				t.Errorf("replayed %t, outcome %q; want %q", replayed, seen.last.Outcome, tt.outcome)
			}
			if !errors.Is(seen.last.Err, errLocked) || tt.end != nil && !errors.Is(seen.last.Err, idemkey.ErrNotStored) {
				t.Errorf("event has error %v, want those of the Sealer and of the store", seen.last.Err)
			}
		})
	}
}

var errLocked = errors.New("no key to seal with")

// A lockedSealer has no key.
type lockedSealer struct{}

func (lockedSealer) Seal(_, _ []byte) (sealed []byte, keyID string, err error) {
	return nil, "", errLocked
}
func (lockedSealer) Open(_, _ []byte, _ string) (plain []byte, err error) { return nil, errLocked }

// The owner of a vanished store's keys has died.
type vanished struct{ stub }

func (v *vanished) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	if c.External && c.Recovered != "run" {
		return idemkey.Decision{Kind: idemkey.KindUnknown, Attempt: 1, Run: "run"}, nil
	}
	return v.stub.Begin(ctx, c)
}

// The executions of an undead store leave their records as a crash would.
type undead struct{ *idemkey.Memory }

func (u undead) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := u.Memory.Begin(ctx, c)
	d.Exec = &stub{}
	return d, err
}

// When the store fails, the handler runs if that was asked for; the response
// promises nothing and the event says so.
func TestFailOpen(t *testing.T) {
	t.Parallel()
	seen := &observer{}
	m := newMiddleware(t, &stub{err: errors.New("down")}, idemkey.Options{FailOpen: true, Observer: seen, Response: idemkey.ResponseOptions{EmitReplayedFalse: true}})
	got := send(t, m, func(w http.ResponseWriter, r *http.Request) {
		if _, ok := idemkey.Info(r.Context()); ok {
			t.Error("Info of an unprotected run")
		}
		created(w, r)
	}, "k", "x")
	got.expect(t, 201, "")
	if got.header.Get("Idempotency-Key") != "" || got.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("header = %v, want no promise", got.header)
	}
	if seen.last.Result != idemkey.ResultFailOpen || seen.last.Outcome != idemkey.OutcomeUnkept || seen.last.Err == nil {
		t.Errorf("event = %+v, want fail_open with its error, and nothing kept", seen.last)
	}
	full := newMiddleware(t, &stub{err: idemkey.ErrCapacity}, idemkey.Options{FailOpen: true})
	send(t, full, created, "k", "x").expect(t, 503, "capacity")
}
