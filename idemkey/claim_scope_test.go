package idemkey_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// A scope at its limit gets no further handler, on any route, and is still told
// what its records say. Others are not held up.
func TestMaxInFlightPerScope(t *testing.T) {
	t.Parallel()
	started, end, log := make(chan struct{}), make(chan struct{}), newCapture()
	s := serve(t, newMemory(t, nil), func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch string(body) {
		case "slow":
			started <- struct{}{}
			<-end
		case "panic":
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(201)
	}, func(o *idemkey.Options) { o.Limits.MaxInFlightPerScope, o.Logger = 1, log.logger() })
	s.post(t, "x", "Idempotency-Key", "done").expect(t, 201, "")
	for range 2 { // a handler that panics gives its place back
		req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/orders", strings.NewReader("panic"))
		req.Header.Set("Idempotency-Key", "panic")
		if resp, err := s.Client().Do(req); err == nil {
			resp.Body.Close()
			t.Errorf("status %d, want the connection cut", resp.StatusCode)
		}
	}
	slow := make(chan reply)
	go func() { slow <- s.post(t, "slow", "Idempotency-Key", "slow") }()
	<-started
	s.post(t, "x", "Idempotency-Key", "new").expect(t, 503, "capacity")
	s.post(t, "slow", "Idempotency-Key", "slow").expect(t, 409, "in-progress")
	s.post(t, "y", "Idempotency-Key", "done").expect(t, 422, "key-reused")
	if again := s.post(t, "x", "Idempotency-Key", "done"); again.status != 201 || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("replay at the limit = %+v", again)
	}
	s.post(t, "x", "Idempotency-Key", "new", "Tenant", "2").expect(t, 201, "")
	close(end)
	if r := <-slow; r.status != 201 {
		t.Errorf("the running handler answered %d", r.status)
	}
	for { // it gives its place back just after its response
		if got := s.post(t, "x", "Idempotency-Key", "new"); got.status != 503 {
			got.expect(t, 201, "")
			break
		}
	}
	if !strings.Contains(log.String(), "the limit of Options.Limits.MaxInFlightPerScope") {
		t.Errorf("the log does not name the limit:\n%s", log)
	}
}

// Routes share the count, and a store that fails does not open the door wider.
func TestMaxInFlightPerScopeShared(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]idemkey.Store{
		"routes": newMemory(t, nil), "not a finder": &stub{}, "fail open": &stub{err: errors.New("down")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMiddleware(t, store, idemkey.Options{Limits: idemkey.Limits{MaxInFlightPerScope: 1}, FailOpen: true})
			route, err := m.With(func(o *idemkey.Options) { o.Limits.MaxRequestBody = 10 })
			if err != nil {
				t.Fatal(err)
			}
			outer := send(t, m, func(w http.ResponseWriter, _ *http.Request) {
				send(t, route, created, "inner", "x").expect(t, 503, "capacity")
				w.WriteHeader(201)
			}, "outer", "x")
			outer.expect(t, 201, "")
			send(t, route, created, "inner", "x").expect(t, 201, "")
		})
	}
}

// A request that waits for another one runs no handler and takes no place.
func TestMaxInFlightPerScopeWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMiddleware(t, newMemory(t, nil), idemkey.Options{Limits: idemkey.Limits{MaxInFlightPerScope: 2, Wait: idemkey.MaxWait}})
		slow := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			created(w, r)
		}
		var wg sync.WaitGroup
		for range 2 { // one of them runs, the other waits
			wg.Go(func() { send(t, m, slow, "slow", "x").expect(t, 201, "") })
		}
		synctest.Wait()
		send(t, m, created, "new", "x").expect(t, 201, "")
		wg.Wait()
	})
}
