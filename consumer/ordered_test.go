package consumer_test

import (
	"testing"

	"github.com/sagamill/sagamill/outbox"
)

// An action of an Ordered step comes again, after a process that died over it and
// a compensation that waits for it. Though the compensation was parked before it,
// the action goes first.
func TestAnOrderedActionDoesNotWaitForItsOwnCompensation(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		for _, end := range []outcome{succeeds, fails} {
			t.Run(name+" "+string(end), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, batch)
				s.limit, s.ordered = 10, true
				build(t, s, map[string]*cell{"k": cells()[2]}) // open after a crash
				s.deliver(t, always(succeeds), arrivals["compensation"]("k"))
				again := arrivals["action"]("k")
				again.Metadata.Set(outbox.PropertyRedelivered, "true")
				s.deliver(t, always(end), again)
				s.settle(t)
				if got, want := s.looks(t)["k"].String(), "compensated | act 1, undo 2 | "; got != want {
					t.Errorf("%q, want %q", got, want)
				}
			})
		}
	}
}
