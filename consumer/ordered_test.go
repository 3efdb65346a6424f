package consumer_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// An action of an Ordered step comes again, after a process that died over it and
// a compensation that waits for it. Though the compensation was parked before it,
// the action goes first.
func TestAnOrderedActionDoesNotWaitForItsOwnCompensation(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		for _, end := range []callResult{succeeds, fails} {
			t.Run(name+" "+string(end), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, batch)
				s.limit, s.ordered = 10, true
				build(t, s, map[string]*cell{"k": cells()[2]}) // open after a crash
				s.deliver(t, always(succeeds), arrivals["compensation"]("k"))
				again := arrivals["action"]("k")
				again.Metadata.Set(outbox.PropertyRedelivered, "true")
				s.deliver(t, always(end), again)
				s.finish(t, always(succeeds))
				if got, want := s.looks(t)["k"].standing(), (standing{state: "compensated", effects: "act 1, undo 2"}); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
			})
		}
	}
}

// A message of an Ordered step dies in its handler on its first delivery, of
// which nothing is left. When it comes again it waits behind an earlier one. The
// entry that died counts all the same.
func TestADeathCountsForAMessageThatWaitsForItsOrder(t *testing.T) {
	t.Parallel()
	for name, batch := range batchSizes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, batch)
			s.ordered = true
			numbered := func(n string) *message.Message {
				msg := identified(actionType, "k", 1)
				msg.UUID += n
				msg.Metadata.Set(outbox.HeaderKey, "k:pay#"+n)
				return msg
			}
			second := []*message.Message{numbered("2")}
			c := startChild(t, s, childConfig{How: kills, Batch: batch, Lanes: 1}, second...)
			s.deliver(t, always(fails), numbered("1"))
			s.deliver(t, always(fails), c.redelivered(second)...)
			s.finish(t, always(fails))
			entries := s.count(t, "SELECT count(*) FROM {schema}.storm_entry WHERE message_id = $1", second[0].UUID)
			if entries > s.limit {
				t.Errorf("%d entries, the limit is %d", entries, s.limit)
			}
		})
	}
}
