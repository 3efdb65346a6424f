package idemkey_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// send runs one request through a middleware without a network, as synctest needs it.
func send(t *testing.T, m *idemkey.Middleware, next http.HandlerFunc, key, body string) reply {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), "POST", "/orders", strings.NewReader(body))
	req.Header.Set("Idempotency-Key", key)
	rec := httptest.NewRecorder()
	m.Handler(next).ServeHTTP(rec, req)
	return reply{rec.Code, rec.Result().Header, rec.Body.String()}
}

func newMiddleware(t *testing.T, store idemkey.Store, opts idemkey.Options) *idemkey.Middleware {
	t.Helper()
	if opts.Scope == nil {
		opts.SingleTenant = true
	}
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	m, err := idemkey.New(store, &opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return m
}

// An observer remembers the last event.
type observer struct{ last idemkey.Event }

func (o *observer) Observe(_ context.Context, e idemkey.Event) { o.last = e }

// A handler that takes many leases is not overtaken while its process renews.
func TestRenew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Limits: idemkey.Limits{Lease: 3 * time.Second, ExecTimeout: time.Hour}})
		go func() {
			time.Sleep(time.Minute)
			send(t, m, created, "k", "x").expect(t, 409, "in-progress")
		}()
		slow := func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				t.Errorf("handler cancelled: %v", context.Cause(r.Context()))
			case <-time.After(2 * time.Minute):
			}
			created(w, r)
		}
		first := send(t, m, slow, "k", "x")
		first.expect(t, 201, "")
		send(t, m, created, "k", "x").sameAs(t, first)
	})
}

// An owner that was overtaken is told so: its handler is cancelled, and what it
// answers all the same reaches its client and is not stored.
func TestRenewLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, seen := newMemory(t, nil), &observer{}
		m := newMiddleware(t, store, idemkey.Options{Limits: idemkey.Limits{Lease: 3 * time.Second, ExecTimeout: time.Hour}, Observer: seen})
		other := newMiddleware(t, store, idemkey.Options{})
		late := send(t, m, func(w http.ResponseWriter, r *http.Request) {
			info, _ := idemkey.Info(r.Context())
			store.Lapse(info.Identity)
			send(t, other, created, "k", "x").expect(t, 201, "")
			<-r.Context().Done()
			if cause := context.Cause(r.Context()); !errors.Is(cause, idemkey.ErrLeaseLost) {
				t.Errorf("cause = %v, want ErrLeaseLost", cause)
			}
			w.WriteHeader(299)
		}, "k", "x")
		late.expect(t, 299, "")
		if seen.last.Outcome != idemkey.OutcomeLost {
			t.Errorf("outcome = %q, want lost", seen.last.Outcome)
		}
		send(t, m, created, "k", "x").expect(t, 201, "")
	})
}

// A store that cannot be reached for a renewal is no reason to stop.
func TestRenewUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMiddleware(t, &unreachable{}, idemkey.Options{Limits: idemkey.Limits{Lease: 3 * time.Second, ExecTimeout: 2 * time.Second}})
		send(t, m, func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				t.Errorf("handler cancelled: %v", context.Cause(r.Context()))
			case <-time.After(1900 * time.Millisecond):
			}
		}, "k", "x").expect(t, 200, "")
	})
}

type unreachable struct{ stub }

func (u *unreachable) Renew(context.Context) error { return errors.New("down") }

func (u *unreachable) Begin(context.Context, idemkey.Claim) (idemkey.Decision, error) {
	return idemkey.Decision{Kind: idemkey.KindProceed, Attempt: 1, Exec: u}, nil
}
