package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
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

// failed is the outcome of what could not be done.
func failed(err error) outcome { return outcome{err: err} }

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

// Carry carries a plan out from now on, each fault at its time, or later if another
// one stands in its way, and returns when all are over. The site's log tells what was
// done, with open at that moment. If ctx ends, what has begun is brought to its end and
// nothing else begins. A plan with a fault that it does not know is an error, and
// nothing is done.
func Carry(ctx context.Context, s *site.Site, plan []record.Planned, open func() int) error {
	for _, p := range plan {
		if _, err := carries(p.Fault); err != nil {
			return err
		}
	}
	c := newCarrier(ctx, s, open)
	began := time.Now()
	var under sync.WaitGroup
	defer under.Wait()
	for i := range plan {
		p := &plan[i]
		carry, _ := carries(p.Fault) // it is known
		if !c.wait(time.Until(began.Add(p.At))) {
			return ctx.Err()
		}
		under.Go(func() { c.carry(p, carry) })
	}
	return nil
}

// carries returns what carries a fault out.
func carries(name string) (func(*carrier, *record.Planned) outcome, error) {
	if name == Kill {
		return (*carrier).kill, nil
	}
	for i := range kinds {
		if kinds[i].name == name {
			return kinds[i].carry, nil
		}
	}
	return nil, fmt.Errorf("fault: there is no fault %q", name)
}

// carry carries p out and logs it.
func (c *carrier) carry(p *record.Planned, do func(*carrier, *record.Planned) outcome) {
	release := c.exclude(p)
	defer release()
	e := record.Event{N: p.N, At: c.site.Now(), Fault: p.Fault, Target: p.Target, Args: p.Args, Open: c.open()}
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { e.Open = max(e.Open, c.most(over)) })
	o := do(c, p)
	close(over)
	watch.Wait()
	e.Until, e.Hits, e.Repeated = c.site.Now(), o.hits, o.repeated
	if o.note != "" && e.Args != "" {
		e.Args += "; "
	}
	e.Args += o.note
	if o.err != nil {
		e.Err = o.err.Error()
	}
	c.site.Log(e)
}

// openLook is between two looks at how many requests are under way.
const openLook = 100 * time.Millisecond

// most returns how many requests were under way at a time, at most, until over.
func (c *carrier) most(over <-chan struct{}) (n int) {
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

// exclude waits until no other fault stands in the way of p, until release.
func (c *carrier) exclude(p *record.Planned) (release func()) {
	lock := c.target(p)
	if lock == nil {
		return func() {}
	}
	lock.Lock()
	return lock.Unlock
}

func (c *carrier) target(p *record.Planned) *sync.Mutex {
	switch p.Fault {
	case BrokerClose, BrokerRestart, BrokerKill, BrokerAlarm, QueueDelete, BindingDelete, ExchangeDelete:
		return &c.broker
	case Crash:
		return &c.postgres
	case GatewayError, GatewayLost, GatewaySlow:
		return &c.gateway
	case CommitLost, CommitReplyLost, LinkSlow, LinkNarrow, LinkSwallow, LinkReset, LinkCut, Suspend, RollingRestart:
		return c.own(p)
	}
	return nil
}

// own is the lock of what p strikes. A process is known by its name both to those who
// suspend it and to those who lose its COMMITs.
func (c *carrier) own(p *record.Planned) *sync.Mutex {
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

// wait waits for d, and reports whether ctx has not ended.
func (c *carrier) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// watchPause is between two looks at what a fault strikes.
const watchPause = 100 * time.Millisecond

// watch waits for d, and returns the most that count has counted, of which n were known.
func (c *carrier) watch(d time.Duration, n int, count func() int) int {
	for end := time.Now().Add(d); time.Now().Before(end) && c.wait(min(watchPause, time.Until(end))); {
		n = max(n, count())
	}
	return n
}

// finish is a context for what must be brought to an end, also when the run is
// stopped.
func (c *carrier) finish() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.ctx), limit)
}

var errNotRunning = errors.New("it does not run")
