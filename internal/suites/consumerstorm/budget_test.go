package consumerstorm

import (
	"fmt"
	"strings"
	"testing"
)

// batchSizes are what the tests run with: the default, and each message alone.
var batchSizes = map[string]int{"batches": 0, "one by one": 1}

// Six processes share a queue. A message that only fails enters its handler
// exactly as often as the limit says, wherever its attempts run, and all others
// take effect.
func TestTheBudgetIsExactOverSixProcesses(t *testing.T) {
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			f := newField(t, processConfig{Batch: batch, Limit: 4, Lanes: 2})
			for range 6 {
				f.add("")
			}
			letters := crowd("pay", 20, `{"end":"fail"}`, `{}`, `{"end":"panic"}`, `{"wait":1}`)
			f.publish(letters...)
			f.publish(letters...) // duplicates, to be had by another process
			f.drain()
			f.judge(Limits{Attempts: 4, Drained: true, MayDie: failing})
			entries := f.evidence().entries()
			for _, l := range letters {
				if n := entries[l.id()]; strings.Contains(l.payload, "end") && n != 4 {
					t.Errorf("%s entered its handler %d times, want 4", l.id(), n)
				}
			}
		})
	}
}

// crowd returns n messages of each payload, one after the other.
func crowd(step string, n int, payloads ...string) (letters []letter) {
	for i := range n {
		for j, payload := range payloads {
			letters = append(letters, letter{key: fmt.Sprint(step, "-", j, "-", i), step: step, kind: Action, payload: payload})
		}
	}
	return letters
}

// failing reports whether p is a dead letter of a message that fails.
func failing(p Parked) bool { return strings.Contains(string(p.Payload), `"end"`) }

// Messages that kill their process arrive among others, some of which fail. Each kills at most as many
// processes as the limit says, and ends as a dead letter. No other message becomes a dead letter because of
// it.
func TestAKillerTakesNobodyWithIt(t *testing.T) {
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			const limit, killers = 3, 2
			f := newField(t, processConfig{Batch: batch, Limit: limit, Lanes: 4})
			letters := crowd("pay", 20, `{}`, `{"wait":2}`)
			for i := range killers {
				killer := letter{key: fmt.Sprint("killer", i), step: "pay", kind: Action, payload: `{"end":"kill"}`}
				letters[i*11+7] = killer
			}
			f.publish(letters...)
			for range 2 {
				f.add("")
			}
			deaths := f.drain()
			if deaths > limit*killers {
				t.Errorf("%d processes died of %d messages, the limit is %d for each", deaths, killers, limit)
			}
			f.judge(Limits{Attempts: limit, Drained: true, MayDie: failing})
			entries := f.evidence().entries()
			for i := range killers {
				if n := entries[letters[i*11+7].id()]; n < 1 || n > limit {
					t.Errorf("killer %d entered its handler %d times, want 1 to %d", i, n, limit)
				}
			}
			t.Logf("%d deaths", deaths)
		})
	}
}
