package saga

import (
	"errors"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/sagarow"
)

// Postpone has o note that the timer of an instance has failed, which was claimed at that
// revision, as the given try.
func Postpone(o *Orchestrator, scope, key string, revision, try int) {
	o.timers.postponeTimer(claimed{Address: sagarow.Address{Scope: scope, Key: key}, revision: revision, tries: try}, errors.New("it failed"))
}

// Patient has o, which does not run yet, wait for locks until the server finds that two wait
// for each other.
func Patient(o *Orchestrator) { o.receiver.lockWait = time.Minute }

// AwaitTimerPasses returns when o has looked for timers n times from now on.
func AwaitTimerPasses(t testing.TB, o *Orchestrator, n int) {
	t.Helper()
	o.timers.passed.Enable()
	for range n {
		o.timers.passed.Wait(t)
	}
}
