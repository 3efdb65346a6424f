package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/bench/internal/proctime"
	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/backoff"
)

const (
	lossGoal  = 0.01
	settling  = time.Second     // before browsers are watched: a read for the last browser may still run
	opening   = 5 * time.Second // before a slice: the browsers have read their pages by then, and follow them
	aloneTime = time.Minute     // in which browsers are watched without a load
)

// startLoad starts the service with a load, and returns what stops it.
func (b *bench) startLoad(ctx context.Context, rate int) (stop func() error, err error) {
	w, err := startWorker(ctx, b.job)
	if err != nil {
		return nil, err
	}
	b.worker = w
	return w.stop, w.load(rate)
}

// A crowd is browsers with pages open: each follows the stream of its page.
type crowd struct {
	site    *site
	running sync.WaitGroup
	leave   context.CancelFunc
	events  atomic.Int64
	problem atomic.Pointer[error]
}

// gather opens a browser for each path, as a person does: the page, and then its stream.
func (s *site) gather(ctx context.Context, paths []string) (*crowd, error) {
	c := &crowd{site: s}
	ctx, c.leave = context.WithCancel(ctx)
	for _, path := range paths {
		if err := s.open(ctx, path, false); err != nil {
			return nil, errors.Join(err, c.disperse())
		}
		c.running.Go(func() {
			for ctx.Err() == nil {
				if err := c.follow(ctx, "live/"+path); err != nil && ctx.Err() == nil {
					c.problem.Store(&err)
					return
				}
			}
		})
	}
	return c, nil
}

func (c *crowd) follow(ctx context.Context, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.site.server.URL+"/"+path, nil)
	if err != nil {
		return err
	}
	response, err := c.site.server.Client().Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s is %s", errStatus, path, response.Status)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "event: ") {
			c.events.Add(1)
		}
	}
	return lines.Err()
}

// disperse closes the browsers.
func (c *crowd) disperse() error {
	c.leave()
	c.running.Wait()
	if p := c.problem.Load(); p != nil {
		return *p
	}
	return nil
}

// paths are what five browsers have open: each another page with a live part.
func (v *values) paths() []string {
	return []string{"", "sagas", "dead", "outbox", sagaOf("stuck")(v)}
}

// A stretch is what was done in a time.
type stretch struct {
	took       time.Duration
	sagas      uint64
	used       proctime.Usage
	console    time.Duration // processor time of the console, the browsers and the statements of the console
	statements int64
}

func (p *stretch) rate() float64 { return float64(p.sagas) / p.took.Seconds() }

// each returns the processor time of all for one saga, in milliseconds.
func (p *stretch) each() float64 {
	return target.Milliseconds(p.used.Client+p.used.Database+p.used.Broker) / float64(p.sagas)
}

// watch measures what happens within a time.
func (b *bench) watch(ctx context.Context, s *site, d time.Duration) (stretch, error) {
	begun, used, console, statements := time.Now(), proctime.ReadUsage(b.job.Holder), s.used(), s.count.Statements.Load()
	done := uint64(0)
	if b.worker != nil {
		done = b.worker.done.Load()
	}
	if err := backoff.Sleep(ctx, d); err != nil {
		return stretch{}, err
	}
	p := stretch{took: time.Since(begun), used: proctime.ReadUsage(b.job.Holder).UsedSince(used), console: s.used() - console, statements: s.count.Statements.Load() - statements}
	if b.worker != nil {
		p.sagas = b.worker.done.Load() - done
	}
	return p, nil
}

// openBrowsers measures what open browsers cost a service.
func (b *bench) openBrowsers(ctx context.Context) (targets []target.Target, err error) {
	s, err := openSite(ctx, b.job.Database)
	if err != nil {
		return nil, err
	}
	defer s.close()
	v, err := b.readValues(ctx)
	if err != nil {
		return nil, err
	}
	alone, err := b.watchAlone(ctx, s, v)
	if err != nil {
		return nil, err
	}
	stop, err := b.startLoad(ctx, -1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var rates, costs, shares []float64
	fmt.Printf("\nthroughput in slices of %s, with five browsers and without, in turns\n", b.slice)
	for round := range b.rounds {
		var parts [2]stretch // without browsers, with them
		for k := range parts {
			open := (round+k)%2 == 1
			if parts[btoi(open)], err = b.slicePart(ctx, s, v, open); err != nil {
				return nil, err
			}
		}
		without, with := &parts[0], &parts[1]
		rates, costs = append(rates, with.rate()/without.rate()), append(costs, with.each()/without.each())
		shares = append(shares, share(with.console, with.took)-share(without.console, without.took))
		fmt.Printf("round %d: %.0f sagas a second without, %.0f with; %.2f ms of processor time for a saga without, %.2f with; %d statements of the console, %.2f %% of the machine\n",
			round+1, without.rate(), with.rate(), without.each(), with.each(), with.statements, shares[round])
	}
	return append(alone,
		target.Target{Name: "throughput-with-browsers", Value: target.MedianOf(rates), Goal: 1 - lossGoal},
		target.Target{Name: "processor-time-with-browsers", Value: target.MedianOf(costs), Goal: 1 + lossGoal, AtMost: true},
		target.Target{Name: "five-pages-percent-beside-a-full-load", Value: target.MedianOf(shares), Goal: lossGoal * 100, AtMost: true}), nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// slicePart measures one slice.
func (b *bench) slicePart(ctx context.Context, s *site, v *values, open bool) (p stretch, err error) {
	if open {
		c, err := s.gather(ctx, v.paths())
		if err != nil {
			return p, err
		}
		defer func() { err = errors.Join(err, c.disperse()) }()
	}
	if err := backoff.Sleep(ctx, opening); err != nil {
		return p, err
	}
	return b.watch(ctx, s, b.slice)
}

// watchAlone measures what browsers cost without a load: on a machine that is busy, what they take is missing elsewhere.
func (b *bench) watchAlone(ctx context.Context, s *site, v *values) (targets []target.Target, err error) {
	fmt.Printf("\nbrowsers without a load, for %s each\n", aloneTime)
	var parts []stretch
	for _, crowd := range []struct {
		name  string
		paths []string
	}{{"none", nil}, {"one on the overview", []string{""}}, {"five on the overview", []string{"", "", "", "", ""}}, {"five on five pages", v.paths()}, {"none, once they have gone", nil}} {
		p, err := b.watchCrowd(ctx, s, crowd.paths)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crowd.name, err)
		}
		parts = append(parts, p)
		fmt.Printf("%-26s %6.1f statements a second; processor: console and browsers %.2f %%, database %.2f %% of the machine\n",
			crowd.name, float64(p.statements)/p.took.Seconds(), share(p.used.Client, p.took), share(p.used.Database, p.took))
	}
	idle, five := &parts[0], &parts[3]
	busy := share(five.used.Client+five.used.Database, five.took) - share(idle.used.Client+idle.used.Database, idle.took)
	return []target.Target{
		// Without sharing it would be 5. It is not 1: the slower a reading was, the longer it is reused.
		{Name: "five-on-the-overview-to-one", Value: float64(parts[2].statements) / float64(max(1, parts[1].statements)), Goal: 2, AtMost: true},
		{Name: "five-pages-percent-of-the-machine", Value: busy, Goal: lossGoal * 100, AtMost: true},
		{Name: "statements-without-browsers", Value: float64(parts[4].statements), Goal: 0, AtMost: true},
	}, nil
}

// share returns a processor time in percent of what all processors of the machine have.
func share(used, took time.Duration) float64 {
	return 100 * used.Seconds() / took.Seconds() / float64(runtime.NumCPU())
}

// watchCrowd watches browsers from the moment on at which they open their pages.
func (b *bench) watchCrowd(ctx context.Context, s *site, paths []string) (p stretch, err error) {
	if err := errors.Join(s.renew(), backoff.Sleep(ctx, settling)); err != nil {
		return p, err
	}
	before := s.count.Statements.Load()
	c, err := s.gather(ctx, paths)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, c.disperse()) }()
	p, err = b.watch(ctx, s, aloneTime)
	p.statements = s.count.Statements.Load() - before
	return p, err
}
