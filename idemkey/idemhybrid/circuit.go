package idemhybrid

import (
	"sync"
	"time"
)

// retryPause is how long Redis is passed over after a failure, before one call
// probes it again.
const retryPause = time.Second

// A circuit decides which calls ask Redis. It is closed while Redis answers. A
// failure opens it, and only a probe closes it again: calls that were under way
// before the failure may have been answered by another node of a cluster.
type circuit struct {
	pause   time.Duration
	timeout time.Duration // of a call
	now     func() time.Time

	mu    sync.Mutex
	open  bool
	probe time.Time // while open: before it no call is admitted
}

// admitCall reports whether a call may ask Redis, and whether it is the probe of an
// open circuit. The next probe is admitted after this one has ended, also if its
// caller gives up and reports nothing.
func (c *circuit) admitCall() (ok, probe bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return true, false
	}
	now := c.now()
	if now.Before(c.probe) {
		return false, false
	}
	c.probe = now.Add(c.timeout + c.pause)
	return true, true
}

// reportResult takes the result of a call, and reports whether it has opened or
// closed the circuit.
func (c *circuit) reportResult(probe bool, err error) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.open
	switch {
	case err == nil && probe:
		c.open = false
	case err != nil && (probe || !c.open):
		c.open, c.probe = true, c.now().Add(c.pause)
	}
	return c.open != was
}
