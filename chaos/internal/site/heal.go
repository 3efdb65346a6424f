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

// A trouble records when backends or links were last struck. A process may give up during its start only
// because of such a fault.
type trouble struct {
	mu   sync.Mutex
	open int
	last time.Time // when the last fault ended
}

// troubleTail is how long after a fault a start may still fail because of it.
const troubleTail = 2 * time.Second

// beginTrouble notes that a backend or a link is struck from now on, until end.
func (t *trouble) beginTrouble() (end func()) {
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

// BeginTrouble notes that a backend or a link is struck from now on, until end.
func (s *Site) BeginTrouble() (end func()) { return s.trouble.beginTrouble() }

// troubledSince reports whether a backend or a link has been struck since at.
func (s *Site) troubledSince(at record.At) bool {
	s.trouble.mu.Lock()
	defer s.trouble.mu.Unlock()
	return s.trouble.open > 0 || time.Since(s.trouble.last) < s.opts.Now()-at+troubleTail
}

// KillProcess kills a process and reports whether it was running.
func (s *Site) KillProcess(name string) (bool, error) {
	p, err := s.findProcess(name)
	if err != nil {
		return false, err
	}
	_, ok := p.signalProcess(syscall.SIGKILL, killed)
	return ok, nil
}

// SuspendProcess stops a process with SIGSTOP and reports whether it was running.
func (s *Site) SuspendProcess(name string) (bool, error) { return s.sendSignal(name, syscall.SIGSTOP) }

// ResumeProcess continues a suspended process and reports whether it was running.
func (s *Site) ResumeProcess(name string) (bool, error) { return s.sendSignal(name, syscall.SIGCONT) }

func (s *Site) sendSignal(name string, sig syscall.Signal) (bool, error) {
	p, err := s.findProcess(name)
	if err != nil {
		return false, err
	}
	_, ok := p.signalProcess(sig, "")
	return ok, nil
}

// RestartProcess stops a process with SIGTERM, as a deployment does, and waits until its successor is ready. It
// returns how the first one ended.
func (s *Site) RestartProcess(ctx context.Context, name string) (record.Stopped, error) {
	p, err := s.findProcess(name)
	if err != nil {
		return record.Stopped{}, err
	}
	stopped, err := p.terminate(ctx)
	if err == nil {
		err = p.awaitState(ctx, p.checkReady)
	}
	return stopped, err
}

// FindLink returns the link of that name.
func (s *Site) FindLink(name string) (*Link, error) {
	l, ok := s.links[name]
	if !ok {
		return nil, fmt.Errorf("site: there is no link %q", name)
	}
	return l, nil
}

// CommitLossProxy returns the proxy that loses the COMMITs of a process whose name ends in -2.
func (s *Site) CommitLossProxy(process string) (*commitloss.Proxy, error) {
	l, ok := s.losses[process]
	if !ok {
		return nil, fmt.Errorf("site: COMMITs of %q cannot be lost", process)
	}
	return l, nil
}

// PaymentGateway returns the proxy in front of the gateways.
func (s *Site) PaymentGateway() *Gateway { return s.gateway }

// HealAll mends every link, makes the servers run and disarms all fuses. It restarts armed processes and
// returns when every process is ready.
func (s *Site) HealAll(ctx context.Context) error {
	s.disarmed.Store(true)
	s.gateway.StrikeWith(GatewayFault{})
	errs := []error{s.healBroker(), s.healPostgres(ctx)}
	for _, l := range s.links {
		errs = append(errs, l.MendLink())
	}
	for _, p := range s.losses {
		p.Lose(commitloss.Nothing)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, p := range s.processes {
		all.Go(func() { p.disarmFailpoints(ctx) })
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
	return s.postgres.server.startServer(ctx)
}

// disarmFailpoints continues the process, and restarts it if it is armed.
func (p *process) disarmFailpoints(ctx context.Context) {
	p.signalProcess(syscall.SIGCONT, "")
	p.mu.Lock()
	armed := p.armed
	p.mu.Unlock()
	if armed == "" {
		return
	}
	_, _ = p.terminate(ctx) // the end is logged; a process that died before starts disarmed too
}
