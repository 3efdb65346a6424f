//go:build failpoints

package matrixtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest/lineartest"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// serverEnv makes the test's binary a server. It holds its settings.
const serverEnv = "MATRIX_TEST_SERVER"

func TestMain(m *testing.M) {
	if encoded := os.Getenv(serverEnv); encoded != "" {
		if err := runServer(encoded); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What a request asks of its handler, in a header that is not part of the
// fingerprint: a retry may ask for something else.
const (
	doHeader = "Do"
	doWait   = "wait"   // write, then wait to be told to leave
	doReject = "reject" // write, then answer 400
	doFail   = "fail"   // write, then answer 500
	doPanic  = "panic"  // write, then panic
	doQuery  = "query"  // write, then run a statement that takes long
)

// What a server tells on its standard output, a line each.
const (
	saidReading = "reading"  // the first bytes of a body have come
	saidRan     = "ran"      // the handler has written
	saidWaiting = "waiting"  // and waits
	saidGone    = "gone"     // the client is, or has its answer
	saidOutcome = "outcome " // and which
)

// leavePath lets a handler go on that waits.
const leavePath = "/leave"

func runServer(encoded string) error {
	var c settings
	if err := json.Unmarshal([]byte(encoded), &c); err != nil {
		return err
	}
	s, err := openSite(context.Background(), c)
	if err != nil {
		return err
	}
	defer s.close()
	h, err := s.handler(func(line string) { fmt.Println(line) })
	if err != nil {
		return err
	}
	return lineartest.Serve(h)
}

// handler returns what a server on s serves. It says what happens, a line each.
func (s *site) handler(say teller) (http.Handler, error) {
	m, err := idemkey.New(s.store, &idemkey.Options{
		SingleTenant:    true,
		Limits:          idemkey.Limits{TTL: s.TTL, Lease: s.Lease, ExecTimeout: s.ExecTimeout, StoreTimeout: storeTimeout, CompleteTimeout: storeTimeout},
		Key:             idemkey.KeyOptions{RejectExpired: s.RejectExpired},
		ExternalEffects: s.ExternalEffects,
		FailOpen:        s.FailOpen,
		Response:        idemkey.ResponseOptions{AllowStreaming: s.Streaming},
		Observer:        say,
		Logger:          quiet,
	})
	if err != nil {
		return nil, err
	}
	h := &handler{site: s, say: say, leave: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("POST /", recovering(say.announcing(m.Handler(h))))
	mux.HandleFunc("POST "+leavePath, func(http.ResponseWriter, *http.Request) { h.left.Do(func() { close(h.leave) }) })
	return mux, nil
}

// A teller tells what happens in a server.
type teller func(line string)

// Observe tells outcomes.
func (say teller) Observe(_ context.Context, e idemkey.Event) { say(saidOutcome + string(e.Outcome)) }

// recovering is what stands outside of the middleware: a panic is a 500.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// announcing tells when a body begins to come, and when its client goes.
func (say teller) announcing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { say(saidGone) })
		r.Body = &announced{ReadCloser: r.Body, say: say}
		next.ServeHTTP(w, r)
	})
}

type announced struct {
	io.ReadCloser
	say  teller
	told bool
}

func (a *announced) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if n > 0 && !a.told {
		a.told = true
		a.say(saidReading)
	}
	return n, err
}

// A handler writes a business row, and answers with the name of its run.
type handler struct {
	*site
	say   teller
	leave chan struct{}
	left  sync.Once
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	run := rand.Text()
	if err := h.write(r.Context(), r.Header.Get("Idempotency-Key"), run); err != nil {
		idemkey.Fail(r.Context(), err)
		return
	}
	h.say(saidRan)
	_ = failpoint.Hit("test/in-handler")
	switch r.Header.Get(doHeader) {
	case doWait:
		h.say(saidWaiting)
		<-h.leave
	case doReject:
		w.WriteHeader(http.StatusBadRequest)
	case doFail:
		w.WriteHeader(http.StatusInternalServerError)
	case doPanic:
		panic(errors.New("on purpose"))
	case doQuery:
		_, _ = idempg.Tx(r.Context()).Exec(r.Context(), "SELECT pg_sleep(60)")
	}
	if do := r.Header.Get(doHeader); do != doReject && do != doFail {
		w.WriteHeader(http.StatusCreated)
	}
	_, _ = io.WriteString(w, run)
}
