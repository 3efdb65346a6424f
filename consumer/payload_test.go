package consumer_test

import "testing"

// An identity that was used for another payload is never silently dropped, also
// where the step is compensated: the row knows the payload that it was.
func TestAnotherPayloadIsADeadLetterAlsoWhereTheActionIsSuperseded(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			s.deliver(t, always(succeeds), arrivals["action"]("k"), arrivals["compensation"]("k"), arrivals["other action"]("k"))
			if got, want := s.looks(t)["k"].standing(), (standing{"compensated", "act 1, undo 2", reusedAction}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}
