package saga

import "testing"

// AwaitTimerPasses returns when o has looked for timers n times from now on.
func AwaitTimerPasses(t testing.TB, o *Orchestrator, n int) {
	t.Helper()
	o.signals.timerPass.Enable()
	for range n {
		o.signals.timerPass.Wait(t)
	}
}
