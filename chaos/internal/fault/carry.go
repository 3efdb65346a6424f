package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/backoff"
)

// limit is the time that a fault has for its cleanup, such as waiting for recreated queues, when the storm is
// already over.
const limit = time.Minute

// An outcome is the result of carrying out a fault.
type outcome struct {
	hits int    // connections, sessions, commits, requests, messages or rows that it struck
	note string // details, appended to the event's Args
	err  error  // why the fault failed; nil: it was carried out

	repeated []record.Repeat
}

// failedOutcome returns the outcome of a fault that failed.
func failedOutcome(err error) outcome { return outcome{err: err} }

// A carrier carries a plan out.
type carrier struct {
	ctx  context.Context
	site *site.Site
	open func() int

	broker, postgres, gateway sync.Mutex // held by faults that exclude each other
	mu                        sync.Mutex
	targets                   map[string]*sync.Mutex
}

func newCarrier(ctx context.Context, s *site.Site, open func() int) *carrier {
	if open == nil {
		open = func() int { return 0 }
	}
	return &carrier{ctx: ctx, site: s, open: open, targets: map[string]*sync.Mutex{}}
}

// CarryOut carries out a plan from now on and returns when all faults are over. Each fault begins at its time,
// or later if another fault excludes it. The site's log records each fault, with the value of open at that
// moment. If ctx ends, faults under way are finished and no other begins. A plan with an unknown fault is an
// error, and none of it is carried out.
func CarryOut(ctx context.Context, s *site.Site, plan []record.Planned, open func() int) error {
	for _, p := range plan {
		if _, err := carriesOut(p.Fault); err != nil {
			return err
		}
	}
	c := newCarrier(ctx, s, open)
	began := time.Now()
	var under sync.WaitGroup
	defer under.Wait()
	for i := range plan {
		p := &plan[i]
		carry, _ := carriesOut(p.Fault) // checked above
		if !c.waitFor(time.Until(began.Add(p.At))) {
			return ctx.Err()
		}
		under.Go(func() { c.carryFault(p, carry) })
	}
	return nil
}

// carriesOut returns the function that carries out a fault.
func carriesOut(name string) (func(*carrier, *record.Planned) outcome, error) {
	if name == Kill {
		return (*carrier).killProcess, nil
	}
	for i := range kinds {
		if kinds[i].name == name {
			return kinds[i].carry, nil
		}
	}
	return nil, fmt.Errorf("fault: there is no fault %q", name)
}

// carryFault carries p out and logs it.
func (c *carrier) carryFault(p *record.Planned, do func(*carrier, *record.Planned) outcome) {
	release := c.excludeOthers(p)
	defer release()
	e := record.Event{N: p.N, At: c.site.SinceBegin(), Fault: p.Fault, Target: p.Target, Args: p.Args, Open: c.open()}
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { e.Open = max(e.Open, c.mostOpenSagas(over)) })
	o := do(c, p)
	close(over)
	watch.Wait()
	e.Until, e.Hits, e.Repeated = c.site.SinceBegin(), o.hits, o.repeated
	if o.note != "" && e.Args != "" {
		e.Args += "; "
	}
	e.Args += o.note
	if o.err != nil {
		e.Err = o.err.Error()
	}
	c.site.LogEvent(e)
}

// openLook is the interval at which open requests are counted.
const openLook = 100 * time.Millisecond

// mostOpenSagas returns the greatest number of requests under way at one time, until over.
func (c *carrier) mostOpenSagas(over <-chan struct{}) (n int) {
	ticker := time.NewTicker(openLook)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			n = max(n, c.open())
		case <-over:
			return n
		}
	}
}

// excludeOthers waits for faults that exclude p, and excludes them until release.
func (c *carrier) excludeOthers(p *record.Planned) (release func()) {
	lock := c.targetLock(p)
	if lock == nil {
		return func() {}
	}
	lock.Lock()
	return lock.Unlock
}

func (c *carrier) targetLock(p *record.Planned) *sync.Mutex {
	switch p.Fault {
	case BrokerClose, BrokerRestart, BrokerKill, BrokerAlarm, QueueDelete, BindingDelete, ExchangeDelete:
		return &c.broker
	case Crash:
		return &c.postgres
	case GatewayError, GatewayLost, GatewaySlow:
		return &c.gateway
	case CommitLost, CommitReplyLost, LinkSlow, LinkNarrow, LinkSwallow, LinkReset, LinkCut, Suspend, RollingRestart:
		return c.ownLock(p)
	}
	return nil
}

// ownLock returns the lock of p's target. Suspending a process and losing its COMMITs share the lock of that
// process.
func (c *carrier) ownLock(p *record.Planned) *sync.Mutex {
	what := p.Target
	switch p.Fault {
	case Suspend:
		what = "suspend " + what
	case RollingRestart:
		what = "restart " + what
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.targets[what] == nil {
		c.targets[what] = new(sync.Mutex)
	}
	return c.targets[what]
}

// waitFor waits for d and returns false if ctx has ended.
func (c *carrier) waitFor(d time.Duration) bool {
	return backoff.Sleep(c.ctx, d) == nil
}

// watchPause is the interval at which a fault's target is counted.
const watchPause = 100 * time.Millisecond

// watchCount waits for d and returns the greatest result of count, at least n.
func (c *carrier) watchCount(d time.Duration, n int, count func() int) int {
	for end := time.Now().Add(d); time.Now().Before(end) && c.waitFor(min(watchPause, time.Until(end))); {
		n = max(n, count())
	}
	return n
}

// finishContext returns a context for cleanup, which must complete even if the run is stopped.
func (c *carrier) finishContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), limit)
}

var errNotRunning = errors.New("it does not run")
