package idemkeytest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// httpLate: a goroutine that outlives its handler changes neither the sent nor the kept
// response, and its calls return ErrSettled.
func httpLate(t *httpTest) {
	var late func() // runs on the goroutine, between the handler's return and the outcome
	policy := func(status int) idemkey.Verdict {
		if run := late; run != nil {
			late = nil // once: a Write that is let through asks the policy again
			var wg sync.WaitGroup
			wg.Go(run)
			wg.Wait()
		}
		return idemkey.DefaultPolicy(status)
	}
	t.mountHandler(func(o *idemkey.Options) { o.Policy, o.Response.AllowStreaming = policy, !t.storeTraits().Transactional },
		func(w http.ResponseWriter, r *http.Request) error {
			t.writeRow(r, "order")
			late = func() {
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Set("Location", "/late")
				w.WriteHeader(http.StatusTeapot)
				if _, err := io.WriteString(w, "late"); !errors.Is(err, idemkey.ErrSettled) {
					t.Errorf("late Write: %v, want ErrSettled", err)
				}
				_ = http.NewResponseController(w).Flush()
				idemkey.SetVerdict(r.Context(), idemkey.Retryable)
				idemkey.Fail(r.Context(), errHandler)
			}
			if r.Header.Get("Idempotency-Key") == "written" {
				w.WriteHeader(http.StatusAccepted)
			}
			return nil
		})
	for key, status := range map[string]int{"written": http.StatusAccepted, "silent": http.StatusOK} {
		first := t.postOrder("x", key)
		if t.expectReply(first, status, ""); first.Body != "" || first.Header.Get("Location") != "" {
			t.Errorf("%s: response = %+v, want nothing of what came late", key, first)
		}
		t.expectReplay(t.postOrder("x", key), first)
	}
	t.expectRows("order", 2)
}

// httpBeside: a goroutine may use the response beside its handler and after it without a data race. The
// sent response is the kept one.
func httpBeside(t *httpTest) {
	for key, streams := range map[string]bool{"buffered": false, "streamed": true} {
		if streams && t.storeTraits().Transactional {
			continue
		}
		var beside sync.WaitGroup
		answered := make(chan struct{})
		t.mountHandler(func(o *idemkey.Options) { o.Response.AllowStreaming = streams }, func(w http.ResponseWriter, r *http.Request) error {
			header := w.Header()
			w.WriteHeader(http.StatusAccepted)
			beside.Go(func() {
				control := http.NewResponseController(w)
				for n, settled := 0, false; !settled; n++ {
					_, err := io.WriteString(w, "beside "[:max(0, 7-n/100)]) // not more than may be kept
					settled = errors.Is(err, idemkey.ErrSettled)
					header.Set("Location", "/beside")
					w.WriteHeader(http.StatusTeapot)
					_ = control.Flush()
					idemkey.SetVerdict(r.Context(), idemkey.Keep)
				}
				<-answered
				_, _ = io.WriteString(w, "late")
			})
			return nil
		})
		first := t.postOrder("x", key)
		close(answered)
		beside.Wait()
		if t.expectReply(first, http.StatusAccepted, ""); first.Header.Get("Location") != "" {
			t.Errorf("%s: Location = %q", key, first.Header.Get("Location"))
		}
		again := t.postOrder("x", key)
		if again.Status == http.StatusGone && streams {
			continue // it has begun before the handler returned
		}
		t.expectReplay(again, first)
	}
}

// httpCut: if a handler fails once its response is on its way, the client sees that it was cut
// off, even behind a recoverer, and the request never runs again.
func httpCut(t *httpTest) {
	if t.storeTraits().Transactional {
		return // it does not stream
	}
	for _, t.http2 = range []bool{false, true} {
		for way, end := range map[string]func(r *http.Request){
			"panic":   func(*http.Request) { panic("of the handler") },
			"abort":   func(*http.Request) { panic(http.ErrAbortHandler) },
			"goexit":  func(*http.Request) { runtime.Goexit() },
			"timeout": func(r *http.Request) { <-r.Context().Done() },
			"fail":    func(r *http.Request) { idemkey.Fail(r.Context(), errHandler) },
			"":        func(*http.Request) {},
		} {
			t.expectCut(fmt.Sprintf("%s-%t", way, t.http2), way, end)
		}
	}
}

// expectCut checks a response whose handler calls end after the last byte and has declared its length.
func (t *httpTest) expectCut(key, way string, end func(r *http.Request)) {
	var runs atomic.Int32
	limit := func(o *idemkey.Options) {
		o.Response.AllowStreaming = true
		if way == "timeout" {
			o.Limits.ExecTimeout = 50 * time.Millisecond
		}
	}
	t.mountHandler(limit, func(w http.ResponseWriter, r *http.Request) error {
		runs.Add(1)
		w.Header().Set("Content-Length", "5")
		_, _ = io.WriteString(w, "whole")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("%s: Flush: %v", key, err)
		}
		end(r)
		return nil
	})
	first, err := t.sendRequest(t.newRequest(t.Context(), http.MethodPost, "x", key))
	if (err != nil) != (way != "") || err == nil && first.Body != "whole" {
		t.Errorf("%s: body %q, %v; want it cut off unless the handler succeeds", key, first.Body, err)
	}
	e := <-t.events
	if e.Outcome != idemkey.OutcomeKept || e.Status != http.StatusOK || (e.Err != nil) != (way != "") {
		t.Errorf("%s: event = %+v", key, e)
	}
	if text := fmt.Sprint(e.Err); way == "panic" && !(strings.Contains(text, "of the handler") && strings.Contains(text, "httpCut")) {
		t.Errorf("%s: error = %s, want the panic's value and stack", key, text)
	}
	t.expectReply(t.postOrder("x", key), http.StatusGone, idemkey.CodeNotRetained)
	if runs.Load() != 1 {
		t.Errorf("%s: the handler ran %d times", key, runs.Load())
	}
}

// httpTooLarge: a body beyond what may be buffered is not sent, whatever the handler makes of the
// refused Write. It rolls back, or has run for good.
func httpTooLarge(t *httpTest) {
	var fails atomic.Bool
	t.mountHandler(func(o *idemkey.Options) { o.Limits.MaxResponseBody, o.Limits.HardResponseLimit = 10, 10 }, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		if t.checkAttempt(r) > 1 {
			return writeStatus(w, ran)
		}
		if r.Header.Get("Idempotency-Key") == "unavailable" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, err := io.WriteString(w, strings.Repeat("x", 11))
		if err == nil {
			t.Error("Write over the limit returned no error")
		}
		if r.Header.Get("Idempotency-Key") == "thrown" { // as httputil.ReverseProxy does
			panic(http.ErrAbortHandler)
		}
		if fails.Load() {
			return err
		}
		return nil
	})
	if got, err := t.sendRequest(t.newRequest(t.Context(), http.MethodPost, "x", "thrown")); err == nil && got.Status < 500 {
		t.Errorf("thrown: answered %+v, want none or a 500", got)
	}
	for _, key := range []string{"ignored", "returned", "unavailable"} {
		fails.Store(key == "returned")
		first := t.postOrder("x", key)
		t.expectReply(first, http.StatusInternalServerError, idemkey.CodeResponseTooLarge)
		if !strings.Contains(first.Body, `"retryable":false,"same_key":false`) || !strings.Contains(first.Body, "HardResponseLimit, 10 bytes") {
			t.Errorf("%s: problem = %s, want it not retryable, with the limit", key, first.Body)
		}
		t.expectRows("order", 0)
	}
	for _, key := range []string{"thrown", "ignored", "returned", "unavailable"} {
		if t.storeTraits().Transactional || key == "unavailable" { // it said itself that it failed
			t.expectReply(t.postOrder("x", key), ran, "")
			continue
		}
		t.expectReply(t.postOrder("x", key), http.StatusGone, idemkey.CodeNotRetained)
	}
	t.expectRows("order", 4)
}

// httpHeaders: headers that cannot be stored arrive, once.
func httpHeaders(t *httpTest) {
	const lines = idemkey.MaxStoredValues + 1
	t.mountHandler(nil, func(w http.ResponseWriter, r *http.Request) error {
		t.writeRow(r, "order")
		for n := range lines {
			w.Header().Add("Link", fmt.Sprintf("</%d>", n))
		}
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, "created")
		return err
	})
	first := t.postOrder("x", "k")
	if got := len(first.Header.Values("Link")); first.Status != http.StatusCreated || first.Body != "created" || got != lines {
		t.Errorf("first response = %d %q with %d links, want 201 created with %d", first.Status, first.Body, got, lines)
	}
	if e := <-t.events; e.Outcome != idemkey.OutcomeKept || !e.Oversize || e.Err == nil {
		t.Errorf("event = %+v, want it kept, oversize, with the reason", e)
	}
	t.expectReply(t.postOrder("x", "k"), http.StatusGone, idemkey.CodeNotRetained)
	t.expectRows("order", 1)
}
