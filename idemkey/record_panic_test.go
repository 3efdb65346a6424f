package idemkey_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/guardtest"
)

// Whatever panics, or ends its goroutine, in a request: no goroutine is left that renews its lease.
func TestAPanicLeavesNoGoroutine(t *testing.T) {
	verify := guardtest.Goroutines(t) // not parallel: goroutines are counted
	t.Run("suite", func(t *testing.T) {
		idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
			m := newMemory(t, nil)
			return idemkeytest.Subject{
				Store:  m,
				Crash:  func(_ testing.TB, id idemkey.Identity, _ idemkey.Execution) { m.Lapse(id) },
				Expire: func(_ testing.TB, id idemkey.Identity) { m.Expire(id) },
			}
		})
	})
	verify()
}

// A bursting is a store, and an observer, that panic whenever they are called in the background.
type bursting struct {
	idemkey.Store
	told chan struct{}
}

func (s bursting) Begin(ctx context.Context, c idemkey.Claim) (idemkey.Decision, error) {
	d, err := s.Store.Begin(ctx, c)
	d.Exec = burstingExecution{d.Exec}
	return d, err
}

func (s bursting) Sweep(context.Context, int) (int, error) {
	s.tell()
	return 1, nil
}

func (s bursting) tell() {
	select {
	case s.told <- struct{}{}:
	default:
	}
}

func (bursting) Observe(context.Context, idemkey.Event) {}
func (bursting) Swept(context.Context, int)             { panic(guardtest.Value) }
func (s bursting) StoreFailed(context.Context, string, idemkey.Op, error) {
	s.tell()
	panic(guardtest.Value)
}

type burstingExecution struct{ idemkey.Execution }

func (burstingExecution) Renew(context.Context) error { panic(guardtest.Value) }

// A renewal that panics, and an observer that is told of it and panics too, do not end the process:
// the handler goes on, and its response is kept.
func TestAPanicInARenewalDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	s := bursting{newMemory(t, nil), make(chan struct{}, 1)}
	handler := func(w http.ResponseWriter, _ *http.Request) {
		<-s.told
		w.WriteHeader(http.StatusCreated)
	}
	idem, err := idemkey.New(s, &idemkey.Options{
		SingleTenant: true, Observer: s, Logger: slog.New(slog.DiscardHandler),
		Limits: idemkey.Limits{Lease: time.Second, ExecTimeout: 500 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	r.Header.Set("Idempotency-Key", "k")
	idem.Handler(http.HandlerFunc(handler)).ServeHTTP(w, r)
	if w.Code != http.StatusCreated {
		t.Errorf("the request is answered %d", w.Code)
	}
}

// A sweeper goes on after a pass whose observer, or whose logger, has panicked.
func TestAPanicDoesNotEndASweeper(t *testing.T) {
	t.Parallel()
	guardtest.Covered(t, map[string]bool{"SweeperOptions.Observer.Swept": true, "SweeperOptions.Logger": true}, idemkey.SweeperOptions{})
	s := bursting{newMemory(t, nil), make(chan struct{}, 1)}
	sweeper, err := idemkey.NewSweeper(s, &idemkey.SweeperOptions{
		Interval: time.Millisecond, Batch: 2, Observer: s, Logger: guardtest.Log(guardtest.Ways["panic"]),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sweeper.Run(ctx) }()
	<-s.told
	<-s.told
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
}
