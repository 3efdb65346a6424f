//go:build failpoints

package consumerstorm

import "testing"

// A process dies right before its first commit, when its handlers have long been entered.
// The broker has no ack by then, gives all of its messages to the next one, and each
// takes effect.
func TestADeathBeforeTheCommitIsADeathBeforeTheAck(t *testing.T) {
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			f := newField(t, processConfig{Batch: batch, Limit: 5, Lanes: 2, Prefetch: 32})
			letters := crowd("pay", 8, `{"wait":20}`)
			f.publish(letters...)
			dying := f.add("consumer/before-commit=kill")
			f.await("the process is dead, and the broker knows", drainLimit, func() bool {
				return dying.Dead() && f.queue().Consumers == 0
			})
			if n := f.waiting(); n != len(letters) {
				t.Fatalf("the broker has %d messages of %d of which nothing has come", n, len(letters)) // to wait for the others is in vain
			}
			f.add("")
			f.drain()
			f.judge(Limits{Attempts: 2, Drained: true})
		})
	}
}
