package idemkeytest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// ran is a status that no test's first request is answered with: it shows that
// the handler ran again.
const ran = 299

// errHandler is a handler's own error. Clients must not see its text.
var errHandler = errors.New("secret of the handler")

func httpReplay(t *httpTest) {
	t.mountHandler(nil, t.answerOrder)
	first := t.postOrder("x", "k")
	t.expectReply(first, http.StatusCreated, "")
	if first.Body != "x\x00\xff\n" || first.Header.Get("Set-Cookie") == "" || first.Header.Get("Idempotency-Key") != "k" {
		t.Errorf("first response = %+v", first)
	}
	again := t.postOrder("x", "k")
	t.expectReplay(again, first)
	if again.Header.Get("Set-Cookie") != "" {
		t.Errorf("replay sets the cookie %q", again.Header.Get("Set-Cookie"))
	}
	t.expectRows("order", 1)
}

func httpInFlight(t *httpTest) {
	entered, leave := make(chan struct{}), make(chan struct{})
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		close(entered)
		<-leave
		return t.answerOrder(w, r)
	})
	var first reply
	var err error
	var wg sync.WaitGroup
	req := t.newRequest(t.Context(), http.MethodPost, "x", "k")
	wg.Go(func() { first, err = t.sendRequest(req) })
	<-entered
	busy := t.postOrder("x", "k")
	t.expectReply(busy, http.StatusConflict, idemkey.CodeInProgress)
	if busy.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After while in flight")
	}
	t.expectInFlight(t.postOrder("y", "k"), http.StatusUnprocessableEntity, idemkey.CodeKeyReused)
	close(leave)
	if wg.Wait(); err != nil {
		t.Fatalf("POST: %v", err)
	}
	t.expectReply(first, http.StatusCreated, "")
	t.expectReplay(t.postOrder("x", "k"), first)
	t.expectRows("order", 1)
}

func httpMismatch(t *httpTest) {
	t.mountHandler(nil, t.answerOrder)
	t.expectReply(t.postOrder("x", "k"), http.StatusCreated, "")
	t.expectReply(t.postOrder("y", "k"), http.StatusUnprocessableEntity, idemkey.CodeKeyReused)
	t.expectReply(t.postOrder("y", "k", "Tenant", "other"), http.StatusCreated, "")
	t.expectRows("order", 2)
}

// httpSettings: a deploy changes the settings of fingerprints while a request runs. Its retries, and
// those of what has run, are answered as before by processes that have the old settings.
func httpSettings(t *httpTest) {
	entered, leave := make(chan struct{}), make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) error {
		if r.Header.Get("Idempotency-Key") == "slow" {
			close(entered)
			<-leave
		}
		return t.answerOrder(w, r)
	}
	t.mountHandler(nil, handler)
	done := t.postOrder("x", "done")
	t.expectReply(done, http.StatusCreated, "")
	var slow reply
	var err error
	var wg sync.WaitGroup
	req := t.newRequest(t.Context(), http.MethodPost, "x", "slow")
	wg.Go(func() { slow, err = t.sendRequest(req) })
	<-entered
	t.mountHandler(func(o *idemkey.Options) { o.Fingerprint.Secret = []byte("new") }, handler)
	t.expectReply(t.postOrder("x", "done"), http.StatusConflict, idemkey.CodeFingerprintUnknown)
	t.expectInFlight(t.postOrder("x", "slow"), http.StatusConflict, idemkey.CodeFingerprintUnknown)
	t.mountHandler(func(o *idemkey.Options) {
		o.Fingerprint.Secret, o.Fingerprint.Versions = []byte("new"), []idemkey.FingerprintOptions{{}}
	}, handler)
	t.expectReplay(t.postOrder("x", "done"), done)
	t.expectReply(t.postOrder("y", "done"), http.StatusUnprocessableEntity, idemkey.CodeKeyReused)
	t.expectReply(t.postOrder("x", "slow"), http.StatusConflict, idemkey.CodeInProgress)
	t.expectInFlight(t.postOrder("y", "slow"), http.StatusUnprocessableEntity, idemkey.CodeKeyReused)
	close(leave)
	if wg.Wait(); err != nil {
		t.Fatalf("POST: %v", err)
	}
	t.expectReplay(t.postOrder("x", "slow"), slow)
	t.expectRows("order", 2)
}

// httpRefusals: a request that is refused before the claim never reaches the handler.
func httpRefusals(t *httpTest) {
	t.mountHandler(func(o *idemkey.Options) { o.Limits.MaxRequestBody = 10 }, func(http.ResponseWriter, *http.Request) error {
		t.Error("the handler ran")
		return nil
	})
	long := strings.Repeat("x", 11)
	t.expectReply(t.postOrder("x", ""), http.StatusBadRequest, idemkey.CodeKeyMissing)
	for _, key := range []string{" ", "a,b", `"a`, strings.Repeat("k", 256)} {
		t.expectReply(t.postOrder("x", key), http.StatusBadRequest, idemkey.CodeKeyInvalid)
	}
	t.expectReply(t.postOrder("x", "a", "Idempotency-Key", "a"), http.StatusBadRequest, idemkey.CodeKeyInvalid)
	t.expectReply(t.postOrder("x", "k", "Tenant", "none"), http.StatusUnauthorized, idemkey.CodeScopeMissing)
	t.expectReply(t.postOrder(long, "k"), http.StatusRequestEntityTooLarge, idemkey.CodeBodyTooLarge)
}

// httpError: a returned error rolls back and may run again, and the client does not
// learn its text.
func httpError(t *httpTest) {
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		if t.checkAttempt(r) == 1 {
			idemkey.SetVerdict(r.Context(), idemkey.CommitAnyway) // an error never commits
			return errHandler
		}
		return writeStatus(w, ran)
	})
	first := t.postOrder("x", "k")
	if first.Status != http.StatusInternalServerError || strings.Contains(first.Body, "secret") {
		t.Errorf("error was answered %d %q, want a 500 that tells nothing", first.Status, first.Body)
	}
	t.expectRows("order", 0)
	if !t.storeTraits().Traceless {
		t.expectReply(t.postOrder("y", "k"), http.StatusUnprocessableEntity, idemkey.CodeKeyReused) // the key stays bound
	}
	t.expectReply(t.postOrder("x", "k"), ran, "")
	t.expectRows("order", 1)
}

// httpProblem: a returned problem is the answer, and kept like any other 4xx.
func httpProblem(t *httpTest) {
	t.mountHandler(nil, func(_ http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		return &idemkey.Problem{Status: http.StatusGone, Code: "sold-out", Title: "Sold out"}
	})
	first := t.postOrder("x", "k")
	t.expectReply(first, http.StatusGone, "sold-out")
	t.expectReplay(t.postOrder("x", "k"), first)
	t.expectRows("order", 0)
}

func httpPanic(t *httpTest) {
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		if t.checkAttempt(r) == 1 {
			w.Header().Set("Location", "/orders/1")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "half")
			panic("handler panics")
		}
		return writeStatus(w, ran)
	})
	first := t.postOrder("x", "k")
	if first.Status != http.StatusInternalServerError || strings.Contains(first.Body, "half") || first.Header.Get("Location") != "" {
		t.Errorf("panic was answered %+v, want the recoverer's 500", first)
	}
	t.expectRows("order", 0)
	t.expectReply(t.postOrder("x", "k"), ran, "")
	t.expectRows("order", 1)
}

// httpAbort: http.ErrAbortHandler ends the connection or is a 500, never a success.
func httpAbort(t *httpTest) {
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		if t.checkAttempt(r) == 1 {
			_, _ = io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		}
		return writeStatus(w, ran)
	})
	first, err := t.sendRequest(t.newRequest(t.Context(), http.MethodPost, "x", "k"))
	if err == nil && (first.Status < 500 || strings.Contains(first.Body, "half")) {
		t.Errorf("aborted request was answered %d %q", first.Status, first.Body)
	}
	t.expectRows("order", 0)
	t.expectReply(t.postOrder("x", "k"), ran, "")
	t.expectRows("order", 1)
}

// httpStatuses: which statuses commit, and which are kept.
func httpStatuses(t *httpTest) {
	answer := http.StatusOK
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, r.Header.Get("Idempotency-Key"))
		if t.checkAttempt(r) > 1 {
			return writeStatus(w, ran)
		}
		return writeStatus(w, answer)
	})
	for _, tt := range []struct {
		key    string
		status int
		rows   int // after the first request
		again  int // status of the second
	}{
		{"ok", 200, 1, 200},
		{"redirect", 303, 1, 303},
		{"no-content", 204, 1, 204},
		{"not-modified", 304, 1, 304},
		{"invalid", 400, 0, 400},
		{"not-found", 404, 0, 404},
		{"forbidden", 403, 0, ran},
		{"conflict", 409, 0, ran},
		{"error", 500, 0, ran},
		{"unavailable", 503, 0, ran},
	} {
		answer = tt.status
		first := t.postOrder("x", tt.key)
		t.expectReply(first, tt.status, "")
		t.expectRows(tt.key, tt.rows)
		again := t.postOrder("x", tt.key)
		t.expectReply(again, tt.again, "")
		if tt.again != ran && (again.Header.Get("Idempotent-Replayed") != "true" || again.Body != first.Body) {
			t.Errorf("%s: second response %+v is no replay", tt.key, again)
		}
	}
}

func httpCommitAnyway(t *httpTest) {
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		idemkey.SetVerdict(r.Context(), idemkey.CommitAnyway)
		return writeStatus(w, http.StatusPaymentRequired)
	})
	t.expectReply(t.postOrder("x", "k"), http.StatusPaymentRequired, "")
	t.expectReply(t.postOrder("x", "k"), http.StatusPaymentRequired, "")
	t.expectRows("order", 1)
}

// httpEmpty: writing nothing is an empty 200, as everywhere.
func httpEmpty(t *httpTest) {
	t.mountHandler(nil, func(_ http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		return nil
	})
	first := t.postOrder("x", "k")
	if t.expectReply(first, http.StatusOK, ""); first.Body != "" {
		t.Errorf("body = %q, want none", first.Body)
	}
	t.expectReplay(t.postOrder("x", "k"), first)
	t.expectRows("order", 1)
}

// httpTombstone: a response over the limit arrives, once.
func httpTombstone(t *httpTest) {
	body := strings.Repeat("0123456789", 20_000)
	t.mountHandler(func(o *idemkey.Options) { o.Limits.MaxResponseBody = 1000 }, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, body)
		return err
	})
	first := t.postOrder("x", "k")
	if first.Status != http.StatusCreated || first.Body != body {
		t.Errorf("first response = %d with %d bytes, want 201 with %d", first.Status, len(first.Body), len(body))
	}
	again := t.postOrder("x", "k")
	t.expectReply(again, http.StatusGone, idemkey.CodeNotRetained)
	if again.Header.Get("Location") != "/orders/1" {
		t.Errorf("Location = %q, want that of the first response", again.Header.Get("Location"))
	}
	t.expectRows("order", 1)
}

// httpTimeout: a handler that comes back too late has failed, whatever it
// answered.
func httpTimeout(t *httpTest) {
	t.mountHandler(func(o *idemkey.Options) { o.Limits.ExecTimeout = 500 * time.Millisecond }, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		if t.checkAttempt(r) == 1 {
			<-r.Context().Done()
			return writeStatus(w, http.StatusCreated)
		}
		return writeStatus(w, ran)
	})
	t.expectReply(t.postOrder("x", "k"), http.StatusServiceUnavailable, idemkey.CodeExecTimeout)
	t.expectRows("order", 0)
	t.expectReply(t.postOrder("x", "k"), ran, "")
	t.expectRows("order", 1)
}

// httpDisconnect: a client that goes away does not stop its request.
func httpDisconnect(t *httpTest) {
	entered, gone := make(chan struct{}), make(chan struct{})
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		close(entered)
		<-gone
		if err := r.Context().Err(); err != nil {
			t.Errorf("the handler's context ended with its client: %v", err)
		}
		return t.answerOrder(w, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-entered
		cancel()
	}()
	if _, err := t.sendRequest(t.newRequest(ctx, http.MethodPost, "x", "k")); !errors.Is(err, context.Canceled) {
		t.Fatalf("request: %v, want it cancelled", err)
	}
	close(gone)
	if e := <-t.events; e.Outcome != idemkey.OutcomeKept {
		t.Errorf("event = %+v, want the response kept", e)
	}
	again := t.postOrder("x", "k")
	t.expectReply(again, http.StatusCreated, "")
	if again.Header.Get("Idempotent-Replayed") != "true" {
		t.Error("the second response is no replay")
	}
	t.expectRows("order", 1)
}

// httpStreaming: no way of streaming sends a byte before the outcome is durable.
func httpStreaming(t *httpTest) {
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		if t.checkAttempt(r) > 1 {
			return writeStatus(w, ran)
		}
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "early")
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		control := http.NewResponseController(w)
		_ = control.Flush()
		if conn, _, err := control.Hijack(); err == nil {
			t.Error("Hijack got the connection")
			_ = conn.Close()
		}
		if err := control.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("SetWriteDeadline: %v", err)
		}
		if len(t.events) > 0 {
			t.Error("the request was over before its handler")
		}
		w.Header().Set("Location", "/late")
		return nil
	})
	first := t.postOrder("x", "k")
	t.expectReply(first, http.StatusInternalServerError, "")
	if first.Body != "early" || first.Header.Get("Content-Length") != "5" || first.Header.Get("Location") != "" {
		t.Errorf("response = %+v, want it in one piece", first) // a flushed one is chunked
	}
	t.expectRows("order", 0)
	t.expectReply(t.postOrder("x", "k"), ran, "")
}

// httpUntouched: a method that is not covered is as if there was no middleware,
// streaming included.
func httpUntouched(t *httpTest) {
	var runs atomic.Int32
	more := make(chan struct{})
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		if _, ok := idemkey.Info(r.Context()); ok {
			t.Error("GET has an Info")
		}
		if runs.Add(1) == 1 {
			return writeStatus(w, ran)
		}
		_, _ = io.WriteString(w, "one")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("Flush: %v", err)
		}
		<-more // the client has read the first part
		_, err := io.WriteString(w, "two")
		return err
	})
	first, err := t.sendRequest(t.newRequest(t.Context(), http.MethodGet, "", "k"))
	if err != nil {
		t.Fatalf("GET: %v", err)
	}
	t.expectReply(first, ran, "")
	resp, err := t.server.Client().Do(t.newRequest(t.Context(), http.MethodGet, "", "k"))
	if err != nil {
		t.Fatalf("GET: %v", err)
	}
	defer resp.Body.Close()
	part := make([]byte, len("one"))
	if _, err := io.ReadFull(resp.Body, part); err != nil || string(part) != "one" {
		t.Errorf("first part = %q, %v", part, err)
	}
	close(more)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "two" {
		t.Errorf("rest = %q, %v", rest, err)
	}
	if resp.Header.Get("Idempotent-Replayed") != "" || len(t.events) > 0 {
		t.Error("the middleware had to do with a GET")
	}
}

// httpKeyless: under Optional a request without a key has its transaction, and
// no memory.
func httpKeyless(t *httpTest) {
	t.mountHandler(func(o *idemkey.Options) { o.Key.Optional = true }, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		if body, _ := io.ReadAll(r.Body); string(body) == "bad" {
			return errHandler
		}
		return writeStatus(w, http.StatusCreated)
	})
	t.expectReply(t.postOrder("x", ""), http.StatusCreated, "")
	t.expectReply(t.postOrder("x", ""), http.StatusCreated, "")
	if got := t.postOrder("bad", ""); got.Status != http.StatusInternalServerError {
		t.Errorf("error was answered %d, want 500", got.Status)
	}
	t.expectRows("order", 2)
}

// httpRace: of many requests with one key one runs, and all others get its bytes
// or a 409 in-progress.
func httpRace(t *httpTest) {
	var runs atomic.Int32
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		runs.Add(1)
		return t.answerOrder(w, r)
	})
	var wg sync.WaitGroup
	for range 8 {
		req := t.newRequest(t.Context(), http.MethodPost, "x", "k")
		wg.Go(func() {
			got, err := t.sendRequest(req)
			switch {
			case err != nil:
				t.Errorf("POST: %v", err)
			case got.Status == http.StatusConflict:
			case got.Status != http.StatusCreated || got.Body != "x\x00\xff\n":
				t.Errorf("reply = %+v", got)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 {
		t.Errorf("the handler ran %d times, want once", runs.Load())
	}
	t.expectRows("order", 1)
}

// httpRoute: an event tells its route, which frameworks keep to themselves.
func httpRoute(t *httpTest) {
	t.mountHandler(nil, t.answerOrder)
	t.postOrder("x", "k")
	if e := <-t.events; !strings.HasSuffix(e.Route, "/orders") || e.Result != idemkey.ResultFirst {
		t.Errorf("event = %+v, want the first of route /orders", e)
	}
}
