package outbox

import (
	"sync/atomic"
	"time"
)

// counters count what this relay does.
type counters struct {
	leads                        atomic.Bool
	published, refused, dead     atomic.Uint64
	queued, calls, unavailable   atomic.Uint64
	callMicros, slowestCallMicro atomic.Uint64
}

// called notes a call of the publisher.
func (c *counters) called(d time.Duration) {
	micros := uint64(d.Microseconds())
	c.calls.Add(1)
	c.callMicros.Add(micros)
	for {
		slowest := c.slowestCallMicro.Load()
		if micros <= slowest || c.slowestCallMicro.CompareAndSwap(slowest, micros) {
			return
		}
	}
}

// settled notes what became of p's messages.
func (c *counters) settled(p *page) {
	n, waiting := 0, 0
	for i := range p.items {
		switch p.items[i].outcome {
		case published:
			n++
		case queued:
			waiting++
		}
	}
	c.published.Add(uint64(n))
	c.queued.Add(uint64(waiting))
}
