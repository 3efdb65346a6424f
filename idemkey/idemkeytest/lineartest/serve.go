package lineartest

import (
	"crypto/rand"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/internal/testing/proctest"
)

// Handler failures and pauses, each of so many runs.
const (
	failOneIn  = 12
	pauseOneIn = 6
	maxPause   = 400 * time.Millisecond // past any grace that a run should use
)

// runMark precedes a run's name in its response.
const runMark = "run="

// Handler returns a handler that has one effect per run and answers with bytes
// that no other run answers with. Sometimes it fails after its effect, and
// sometimes it takes long. It goes inside of the middleware under test.
//
// effect writes a business row for the key in the request's transaction.
// point, if not nil, is called behind the effect: a place to die in.
func Handler(effect func(r *http.Request, e Effect) error, point func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		e := Effect{Key: r.Header.Get("Idempotency-Key"), Run: rand.Text()}
		if err := effect(r, e); err != nil {
			http.Error(w, "the effect failed", http.StatusServiceUnavailable)
			return
		}
		if point != nil {
			point()
		}
		if mrand.N(pauseOneIn) == 0 {
			time.Sleep(mrand.N(maxPause))
		}
		if mrand.N(failOneIn) == 0 {
			http.Error(w, "failed on purpose", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Location", "/runs/"+e.Run)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, runContent(e.Run, string(body)))
	})
}

// runContent is the response body of a run. JSON in another order would be the
// same to a parser, and not to a client that compares bytes.
func runContent(run, body string) string {
	return fmt.Sprintf("%s%s\nbody=%s\x00\xff", runMark, run, body)
}

// runResponse is the response of run as the history has it.
func runResponse(run, body string) string { return "201 /runs/" + run + "\n" + runContent(run, body) }

// Serve is an instance's main. It listens on the loopback, and prints its address
// on one line of standard output. It serves h until standard input ends, which
// happens too when the parent process dies.
func Serve(h http.Handler) error { return proctest.Serve(h) }
