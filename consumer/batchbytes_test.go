package consumer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// sized is an action whose payload has so many bytes.
func sized(key string, bytes int) *message.Message {
	msg := act(key)
	msg.Payload = append(msg.Payload, strings.Repeat(" ", bytes-len(msg.Payload))...)
	return msg
}

// Messages of 400 to 1200 bytes are there for one lane at once, and a transaction takes
// 1000 bytes. The one with more is alone in its own.
func TestABatchIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{Lanes: 1, BatchBytes: 1000}, f.step(f.effect("paid"), nil))
	b := newBoard(&c.opts, 1, c.outage)
	for i, bytes := range []int{400, 400, 1200, 400, 200, 600, 1000} {
		b.putEntry(t.Context(), c.router.newBoardEntry("pay", sized(fmt.Sprint("k", i), bytes)))
	}
	b.closeBoard()
	for c.router.runLane(t.Context(), t.Context(), b) {
	}
	batches := f.texts(t, "SELECT string_agg(key, ' ' ORDER BY key) AS keys FROM {schema}.inbox GROUP BY xmin::text ORDER BY keys")
	if got, want := strings.Join(batches, ", "), "k0 k1 k4, k2, k3 k5, k6"; got != want {
		t.Errorf("transactions of %q, want %q", got, want)
	}
	if got, want := len(f.texts(t, "SELECT what FROM {schema}.effect")), 7; got != want {
		t.Errorf("%d effects, want %d", got, want)
	}
}

// Whatever the sizes: no load is over a limit unless it is a single message, each message
// is in one load, and those of a saga are in their order.
func TestNoLoadIsOverItsLimits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		opts := &Options{Lanes: 1 + rng.IntN(3), BatchSize: 1 + rng.IntN(8), BatchBytes: 100 + rng.IntN(1000)}
		b := newBoard(opts, 1, &outageWatch{})
		step, last, left := &stepLoad{}, map[string]int{}, cap(b.room)
		for i := range left {
			msg := sized(fmt.Sprint("k", rng.IntN(5)), 50+rng.IntN(1000))
			msg.Metadata.Set("number", fmt.Sprint(i))
			b.putEntry(t.Context(), boardEntry{topic: "pay", msg: msg, queue: queueKeyOf(msg), load: step, alone: rng.IntN(10) == 0})
		}
		b.closeBoard()
		for l := b.takeLoad(opts.BatchSize, time.Minute); len(l.entries) > 0; l = b.takeLoad(opts.BatchSize, time.Minute) {
			bytes := 0
			for _, e := range l.entries {
				bytes += len(e.msg.Payload)
				key, number := e.msg.Metadata.Get(outbox.HeaderKey), 0
				if _, err := fmt.Sscan(e.msg.Metadata.Get("number"), &number); err != nil || number < last[key] {
					t.Errorf("seed %d: %s has message %d after %d, %v", seed, key, number, last[key], err)
				}
				last[key] = number
			}
			if len(l.entries) > opts.BatchSize || len(l.entries) > 1 && bytes > opts.BatchBytes {
				t.Errorf("seed %d: a load of %d messages with %d bytes, the limits are %d and %d", seed, len(l.entries), bytes, opts.BatchSize, opts.BatchBytes)
			}
			left -= len(l.entries)
			b.releaseLoad(l, nil)
		}
		if left != 0 {
			t.Errorf("seed %d: %d messages were in no load", seed, left)
		}
	}
}
