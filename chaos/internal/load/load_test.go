package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/backoff"
)

// A fickle service keeps each key's first response, and does not always answer with it.
type fickle struct {
	mu       sync.Mutex
	requests map[string]int    // by tenant and key
	bodies   map[string]string // of the first request
}

const keyReused, inProgress = "key-reused", "in-progress"

func (f *fickle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		fmt.Fprint(w, `{"id":"of-a-trip"}`)
		return
	}
	text, _ := io.ReadAll(r.Body)
	body := string(text)
	name := r.Header.Get("Authorization") + r.URL.Path + r.Header.Get("Idempotency-Key")
	f.mu.Lock()
	f.requests[name]++
	n := f.requests[name]
	if f.bodies[name] == "" {
		f.bodies[name] = body
	}
	same := f.bodies[name] == body
	f.mu.Unlock()
	problem := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"type":"urn:%s","code":%q}`, code, code)
	}
	switch {
	case !same:
		problem(http.StatusUnprocessableEntity, keyReused)
	case n == 1:
		panic(http.ErrAbortHandler)
	case n == 2:
		problem(http.StatusConflict, inProgress)
	case n == 3:
		problem(http.StatusServiceUnavailable, "store-unavailable")
	default:
		if n > 4 {
			w.Header().Set("Idempotent-Replayed", "true")
			w.Header().Set("Cache-Control", "no-store")
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"id":%q}`, name)
	}
}

// startLoad returns a load on a fickle service that has two addresses.
func startLoad(t *testing.T, run record.Options) (*Load, *fickle, func() []record.Op) {
	t.Helper()
	f := &fickle{requests: map[string]int{}, bodies: map[string]string{}}
	var urls []string
	for range 2 {
		server := httptest.NewServer(f)
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	dir := t.TempDir()
	ops, err := record.CreateFile[record.Op](dir, record.ClientFile)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	l, err := NewLoad(Options{Seed: 3, Run: run, Orders: urls, Trips: urls, Ops: ops, Now: func() record.At { return time.Since(began) }})
	if err != nil {
		t.Fatal(err)
	}
	return l, f, func() []record.Op {
		if err := ops.Close(); err != nil {
			t.Fatal(err)
		}
		all, err := record.ReadAll[record.Op](dir, record.ClientFile)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

// Each key gets a final answer, the same for all clients, and each request is an Op. Reusing a key for another
// request is refused.
func TestClientsInsist(t *testing.T) {
	t.Parallel()
	const sagas = 150
	l, service, read := startLoad(t, record.Options{Storm: time.Second, Sagas: sagas, Clients: 32, Trips: 30})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the storm ends before it begins; all sagas are begun nevertheless
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if l.BegunSagas() != sagas || l.OpenSagas() != 0 {
		t.Errorf("%d sagas begun, %d requests open", l.BegunSagas(), l.OpenSagas())
	}
	outcomes := map[string]int{}
	replies, requests := map[string]string{}, map[string]int{}
	for _, op := range read() {
		if op.Return < op.Call || op.Tenant == "" || op.Body == "" {
			t.Errorf("op %+v", op)
		}
		if op.Method != http.MethodPost {
			continue
		}
		outcomes[op.Outcome]++
		name := op.Saga + op.Tenant + op.Key
		requests[name]++
		switch op.Outcome {
		case record.OK:
			if reply, ok := replies[name]; ok && reply != op.Reply || op.ID == "" {
				t.Errorf("%+v, and the reply was %s", op, reply)
			}
			replies[name] = op.Reply
		case record.Refused:
			if op.Problem != "urn:"+keyReused && op.Problem != "urn:"+inProgress {
				t.Errorf("refused: %+v", op)
			}
		case record.Unknown:
			if op.Status == 0 && op.Err == "" || op.Status != 0 && op.Status != http.StatusServiceUnavailable {
				t.Errorf("unknown: %+v", op)
			}
		}
	}
	if len(replies) != sagas || outcomes[record.Unknown] < 2*sagas {
		t.Errorf("%d keys are answered; outcomes %v", len(replies), outcomes)
	}
	for name, n := range requests {
		if n > firstTries+maxCopies*copyTries {
			t.Errorf("key %s has %d requests", name, n)
		}
	}
	if told, got := sum(requests), sum(service.requests); told != got {
		t.Errorf("the service has had %d requests, and %d are told of", got, told)
	}
}

func sum(numbers map[string]int) (n int) {
	for _, m := range numbers {
		n += m
	}
	return n
}

// An aborted load ends, and its error says that sagas are missing.
func TestAbort(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))
	t.Cleanup(func() { close(hangs); server.Close() })
	ops, err := record.CreateFile[record.Op](t.TempDir(), record.ClientFile)
	if err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	l, err := NewLoad(Options{
		Run:    record.Options{Storm: time.Hour, Sagas: 1_000_000_000, Clients: 4},
		Orders: []string{server.URL}, Ops: ops, Now: func() record.At { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- l.Run(t.Context()) }()
	for l.OpenSagas() < 4 && t.Context().Err() == nil {
		_ = backoff.Sleep(t.Context(), time.Millisecond)
	}
	l.AbortRequests()
	if err := <-done; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
}
