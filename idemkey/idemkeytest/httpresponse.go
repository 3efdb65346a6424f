package idemkeytest

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/sagamill/sagamill/idemkey"
)

// transactional reports that the business writes roll back with the outcome. Only
// other stores stream.
func (t *httpTest) transactional() bool {
	d, ok := t.backend.Store.(idemkey.Describer)
	return ok && d.Traits().Transactional
}

// httpLate: what a goroutine does that outlives its handler changes neither what is sent
// nor what is kept, and it is told so.
func httpLate(t *httpTest) {
	var late func() // what the goroutine does between the handler's return and the outcome
	policy := func(status int) idemkey.Verdict {
		if run := late; run != nil {
			late = nil // once: a Write that is let through asks the policy again
			var wg sync.WaitGroup
			wg.Go(run)
			wg.Wait()
		}
		return idemkey.DefaultPolicy(status)
	}
	t.serve(func(o *idemkey.Options) { o.Policy, o.Response.AllowStreaming = policy, !t.transactional() },
		func(w http.ResponseWriter, r *http.Request) error {
			t.write(r, "order")
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
		first := t.post("x", key)
		if t.expect(first, status, ""); first.Body != "" || first.Header.Get("Location") != "" {
			t.Errorf("%s: response = %+v, want nothing of what came late", key, first)
		}
		t.replayed(t.post("x", key), first)
	}
	t.rows("order", 2)
}

// httpBeside: a goroutine that uses the response all the time, beside its handler and after it,
// is no data race, and what is sent is what is kept.
func httpBeside(t *httpTest) {
	for key, streams := range map[string]bool{"buffered": false, "streamed": true} {
		if streams && t.transactional() {
			continue
		}
		var beside sync.WaitGroup
		answered := make(chan struct{})
		t.serve(func(o *idemkey.Options) { o.Response.AllowStreaming = streams }, func(w http.ResponseWriter, r *http.Request) error {
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
		first := t.post("x", key)
		close(answered)
		beside.Wait()
		if t.expect(first, http.StatusAccepted, ""); first.Header.Get("Location") != "" {
			t.Errorf("%s: Location = %q", key, first.Header.Get("Location"))
		}
		again := t.post("x", key)
		if again.Status == http.StatusGone && streams {
			continue // it has begun before the handler returned
		}
		t.replayed(again, first)
	}
}
