package endtoend

import (
	"net/http"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// waiting starts an owner on one instance and lets a request for the same key wait
// on another, which has to ask the store again.
func (w *world) waiting(limit time.Duration) (a, b *service, first, second <-chan reply, v *visit) {
	w.Helper()
	a, b = w.start("a", nil), w.start("b", func(c *config) { c.Wait = limit })
	first = a.send("k")
	v = w.hear("a", "handler")
	second = b.send("k")
	for range 3 { // the first look, the one on entering, and one of those that follow
		w.hear("b", "inflight")
	}
	return a, b, first, second, v
}

// A request that waits hears of the end of a run in another process.
func TestWait(t *testing.T) {
	t.Parallel()
	each(t, []string{onRedis, onPostgres, onHybrid}, func(w *world) {
		_, b, first, second, v := w.waiting(idemkey.MaxWait)
		close(v.answer)
		w.answered(await(w.T, first, "the owner's reply"), "a 1", false)
		w.answered(await(w.T, second, "the reply of the one that waits"), "a 1", true)
		b.outcome(event{Result: idemkey.ResultReplay})
		w.effects("k", 1)
	})
}

// Its time may be over before.
func TestWaitTooLong(t *testing.T) {
	t.Parallel()
	each(t, []string{onRedis, onPostgres}, func(w *world) {
		_, b, first, second, v := w.waiting(200 * time.Millisecond)
		w.expect(await(w.T, second, "the reply of the one that waits"), http.StatusConflict, idemkey.CodeInProgress)
		b.outcome(event{Result: idemkey.ResultInProgress})
		close(v.answer)
		w.answered(await(w.T, first, "the owner's reply"), "a 1", false)
		w.effects("k", 1)
	})
}

// Where the owner dies, the one that waits is the retry.
func TestWaitForTheDead(t *testing.T) {
	t.Parallel()
	each(t, []string{onRedis, onPostgres}, func(w *world) {
		a, b, first, second, _ := w.waiting(idemkey.MaxWait)
		a.Kill()
		<-first
		w.lapse("k")
		v := w.hear("b", "handler")
		if v.attempt != 2 {
			w.Errorf("attempt %d runs, want 2", v.attempt)
		}
		close(v.answer)
		w.answered(await(w.T, second, "the reply of the one that waits"), "b 2", false)
		b.outcome(event{idemkey.ResultAgain, idemkey.OutcomeKept})
	})
}
