package site

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/testing/commitloss"
)

// A trouble knows when backends or links were last struck: a process that gives up
// while it starts may do so only because of that.
type trouble struct {
	mu   sync.Mutex
	open int
	last time.Time // when the last one was over
}

// troubleTail is how long after a fault a start may still fail because of it.
const troubleTail = 2 * time.Second

// begin returns what ends it.
func (t *trouble) begin() (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open--
		t.last = time.Now()
	}
}

// Trouble says that a backend or a link is struck from now on, until end.
func (s *Site) Trouble() (end func()) { return s.trouble.begin() }

// troubledSince reports whether a backend or a link has been struck since at.
func (s *Site) troubledSince(at record.At) bool {
	s.trouble.mu.Lock()
	defer s.trouble.mu.Unlock()
	return s.trouble.open > 0 || time.Since(s.trouble.last) < s.opts.Now()-at+troubleTail
}

// Kill kills a process, and reports whether there was one.
func (s *Site) Kill(name string) (bool, error) {
	p, err := s.process(name)
	if err != nil {
		return false, err
	}
	_, ok := p.signal(syscall.SIGKILL, killed)
	return ok, nil
}

// Suspend stops a process, and Resume lets it go on. They report whether there was
// one.
func (s *Site) Suspend(name string) (bool, error) { return s.send(name, syscall.SIGSTOP) }

// Resume is described at Suspend.
func (s *Site) Resume(name string) (bool, error) { return s.send(name, syscall.SIGCONT) }

func (s *Site) send(name string, sig syscall.Signal) (bool, error) {
	p, err := s.process(name)
	if err != nil {
		return false, err
	}
	_, ok := p.signal(sig, "")
	return ok, nil
}

// Restart tells a process to stop, as a deployment does, waits until the next one is
// ready, and says how the first has ended.
func (s *Site) Restart(ctx context.Context, name string) (record.Stopped, error) {
	p, err := s.process(name)
	if err != nil {
		return record.Stopped{}, err
	}
	stopped, err := p.terminate(ctx)
	if err == nil {
		err = p.await(ctx, p.ready)
	}
	return stopped, err
}

// Link returns the link of that name.
func (s *Site) Link(name string) (*Link, error) {
	l, ok := s.links[name]
	if !ok {
		return nil, fmt.Errorf("site: there is no link %q", name)
	}
	return l, nil
}

// Loss returns the proxy that loses the COMMITs of a process whose name ends in -2.
func (s *Site) Loss(process string) (*commitloss.Proxy, error) {
	l, ok := s.losses[process]
	if !ok {
		return nil, fmt.Errorf("site: COMMITs of %q cannot be lost", process)
	}
	return l, nil
}

// Gateway returns the proxy in front of the gateways.
func (s *Site) Gateway() *Gateway { return s.gateway }

// Heal makes every link whole and the servers run, lets no fuse strike any more, and
// returns when every process is ready. Processes that are armed are restarted for it.
func (s *Site) Heal(ctx context.Context) error {
	s.disarmed.Store(true)
	s.gateway.Strike(GatewayFault{})
	errs := []error{s.healBroker(), s.healPostgres(ctx)}
	for _, l := range s.links {
		errs = append(errs, l.Mend())
	}
	for _, p := range s.losses {
		p.Lose(commitloss.Nothing)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, p := range s.processes {
		all.Go(func() { p.disarm(ctx) })
	}
	all.Wait()
	return s.AwaitReady(ctx, Processes()...)
}

func (s *Site) healPostgres(ctx context.Context) error {
	s.postgres.mu.Lock()
	defer s.postgres.mu.Unlock()
	if run := s.postgres.server.run; run != nil {
		return nil
	}
	return s.postgres.server.start(ctx)
}

// disarm lets the process go on, and has it start again if it is armed.
func (p *process) disarm(ctx context.Context) {
	p.signal(syscall.SIGCONT, "")
	p.mu.Lock()
	armed := p.armed
	p.mu.Unlock()
	if armed == "" {
		return
	}
	_, _ = p.terminate(ctx) // how it has ended is logged; if it has died before, it is disarmed as well
}
