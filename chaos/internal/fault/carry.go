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

// limit bounds what a fault does in the end, such as waiting until all is there
// again, if the storm is over by then.
const limit = time.Minute

// An outcome is what became of a fault.
type outcome struct {
	hits int    // connections, sessions, commits, requests, messages or rows that it struck
	note string // how it went, behind its Args
	err  error  // it could not be done

	repeated []record.Repeat
}

// failedOutcome is the outcome of what could not be done.
func failedOutcome(err error) outcome { return outcome{err: err} }

// A carrier carries a plan out.
type carrier struct {
	ctx  context.Context
	site *site.Site
	open func() int

	broker, postgres, gateway sync.Mutex // of faults that exclude each other
	mu                        sync.Mutex
	targets                   map[string]*sync.Mutex
}

func newCarrier(ctx context.Context, s *site.Site, open func() int) *carrier {
	if open == nil {
		open = func() int { return 0 }
	}
	return &carrier{ctx: ctx, site: s, open: open, targets: map[string]*sync.Mutex{}}
}

// CarryOut carries a plan out from now on, each fault at its time, or later if another
// one stands in its way, and returns when all are over. The site's log tells what was
// done, with open at that moment. If ctx ends, what has begun is brought to its end and
// nothing else begins. A plan with a fault that it does not know is an error, and
// nothing is done.
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
		carry, _ := carriesOut(p.Fault) // it is known
		if !c.waitFor(time.Until(began.Add(p.At))) {
			return ctx.Err()
		}
		under.Go(func() { c.carryFault(p, carry) })
	}
	return nil
}

// carriesOut returns what carries a fault out.
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

// openLook is between two looks at how many requests are under way.
const openLook = 100 * time.Millisecond

// mostOpenSagas returns how many requests were under way at a time, at most, until over.
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

// excludeOthers waits until no other fault stands in the way of p, until release.
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

// ownLock is the lock of what p strikes. A process is known by its name both to those who
// suspend it and to those who lose its COMMITs.
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

// waitFor waits for d, and reports whether ctx has not ended.
func (c *carrier) waitFor(d time.Duration) bool {
	return backoff.Sleep(c.ctx, d) == nil
}

// watchPause is between two looks at what a fault strikes.
const watchPause = 100 * time.Millisecond

// watchCount waits for d, and returns the most that count has counted, of which n were known.
func (c *carrier) watchCount(d time.Duration, n int, count func() int) int {
	for end := time.Now().Add(d); time.Now().Before(end) && c.waitFor(min(watchPause, time.Until(end))); {
		n = max(n, count())
	}
	return n
}

// finishContext is a context for what must be brought to an end, also when the run is
// stopped.
func (c *carrier) finishContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), limit)
}

var errNotRunning = errors.New("it does not run")
