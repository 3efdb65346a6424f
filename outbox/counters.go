package outbox

import (
	"errors"
	"sync/atomic"
	"time"
)

// counters count what this relay does.
type counters struct {
	leads                     atomic.Bool
	published, refused        atomic.Uint64
	dead, queued, unavailable atomic.Uint64
	deferred                  atomic.Uint64

	callTime atomic.Int64
	calls    [len(latencyBounds) + 1]atomic.Uint64 // by duration; the last: longer than all bounds
}

// latencyBounds are up to which durations calls of the publisher are told apart.
var latencyBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// called notes a call of the publisher that gave results after d.
func (c *counters) called(d time.Duration, results []error) {
	bucket := 0
	for bucket < len(latencyBounds) && d > latencyBounds[bucket] {
		bucket++
	}
	c.calls[bucket].Add(1)
	c.callTime.Add(int64(d))
	for _, err := range results {
		if err != nil && !errors.Is(err, ErrRefused) {
			c.unavailable.Add(1)
			return
		}
	}
}

// latency reads how long the calls took.
func (c *counters) latency() Latency {
	l := Latency{Buckets: make([]Bucket, len(latencyBounds)), Sum: time.Duration(c.callTime.Load())}
	for i, bound := range latencyBounds {
		l.Count += c.calls[i].Load()
		l.Buckets[i] = Bucket{AtMost: bound, Count: l.Count}
	}
	l.Count += c.calls[len(latencyBounds)].Load()
	return l
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
