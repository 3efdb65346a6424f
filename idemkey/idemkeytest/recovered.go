package idemkeytest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
)

// testRecovered: after a run that is known to have succeeded the handler never runs again, even if
// its response cannot be sealed, or a COMMIT of the store would fail.
func testRecovered(t *testing.T, s Subject) {
	if s.traceless() {
		return // no vanished run leaves a record
	}
	for key, tt := range map[string]struct {
		store  func(idemkey.Store) idemkey.Store
		sealer idemkey.Sealer
		again  int
	}{
		"unsealed": {func(s idemkey.Store) idemkey.Store { return s }, brokenSealer{}, http.StatusGone},
		"conflict": {func(s idemkey.Store) idemkey.Store { return conflicting{s} }, nil, http.StatusAccepted},
	} {
		first := &vanishing{Store: s.Store}
		if got := postUnrun(t, first, idemkey.Options{}, key); got.Code != http.StatusServiceUnavailable {
			t.Fatalf("request of a process that dies: %d", got.Code)
		}
		s.Crash(t, first.claim.ID, first.exec)
		opts := idemkey.Options{Response: idemkey.ResponseOptions{Sealer: tt.sealer}}
		opts.Recover = func(context.Context, idemkey.Identity) (*idemkey.Response, error) {
			return &idemkey.Response{Status: http.StatusAccepted, Body: []byte("found")}, nil
		}
		store := tt.store(s.Store)
		if got := postUnrun(t, store, opts, key); got.Code != http.StatusAccepted || got.Body.String() != "found" {
			t.Errorf("%s: response = %d %q, want 202 found", key, got.Code, got.Body)
		}
		if got := postUnrun(t, store, opts, key); got.Code != tt.again {
			t.Errorf("%s: second response = %d %q, want %d", key, got.Code, got.Body, tt.again)
		}
	}
}

// postUnrun sends a request under key to a handler that must not run.
func postUnrun(t *testing.T, store idemkey.Store, opts idemkey.Options, key string) *httptest.ResponseRecorder {
	t.Helper()
	opts.SingleTenant, opts.Logger = true, slog.New(slog.DiscardHandler)
	m, err := idemkey.New(store, &opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("x"))
	req.Header.Set("Idempotency-Key", key)
	rec := httptest.NewRecorder()
	m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.Errorf("%s: the handler ran", key)
		_, _ = io.WriteString(w, "ran")
	})).ServeHTTP(rec, req)
	return rec
}

// A brokenSealer has lost its key.
type brokenSealer struct{}

var errSealer = errors.New("no key to seal with")

func (brokenSealer) Seal(_, _ []byte) ([]byte, string, error)   { return nil, "", errSealer }
func (brokenSealer) Open(_, _ []byte, _ string) ([]byte, error) { return nil, errSealer }

// A vanishing store claims for a process that does nothing from then on.
type vanishing struct {
	idemkey.Store
	claim idemkey.Claim
	exec  idemkey.Execution
}

func (v *vanishing) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := v.Store.Begin(ctx, c)
	if err != nil {
		return d, err
	}
	v.claim, v.exec = c, d.Exec
	return idemkey.Decision{}, idemkey.ErrCapacity
}

// A conflicting store is one whose COMMIT never succeeds, and so lets the key go.
type conflicting struct{ idemkey.Store }

func (c conflicting) Traits() idemkey.Traits {
	if d, ok := c.Store.(idemkey.Describer); ok {
		return d.Traits()
	}
	return idemkey.Traits{}
}

func (c conflicting) Begin(ctx context.Context, claim idemkey.Claim) (idemkey.Decision, error) {
	d, err := c.Store.Begin(ctx, claim)
	if d.Exec != nil {
		d.Exec = refusedCommit{d.Exec}
	}
	return d, err
}

type refusedCommit struct{ idemkey.Execution }

func (e refusedCommit) Commit(ctx context.Context, _ idemkey.Response) error {
	return errors.Join(idemkey.ErrTxConflict, e.Release(ctx, idemkey.Bound, http.StatusInternalServerError))
}
