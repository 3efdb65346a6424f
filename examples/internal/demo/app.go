package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/internal/plaintext"
)

// shutdownTimeout limits how long requests in hand may take after a signal to stop.
const shutdownTimeout = 30 * time.Second

// An App is one process of a program, which runs the services of its settings.
type App struct {
	Settings *Settings
	Logger   *slog.Logger
	Metrics  []Metric

	// Build completes a service. own is the URL of this process.
	Build func(ctx context.Context, s *Service, own string, b Broker, logger *slog.Logger) error

	// Wrap returns the handler of all services' routes.
	Wrap func(*http.ServeMux) http.Handler

	broker   Broker
	services []*Service
	started  atomic.Bool // migrated, declared, and every loop running
}

// Run serves until caller ends. The HTTP interface answers /healthz from the start, and is ready
// later. If listening is not nil, it receives the address.
func (a *App) Run(caller context.Context, listening chan<- string) error {
	ctx, stop := context.WithCancelCause(caller)
	defer stop(nil)
	listener, err := a.Settings.takeListener()
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	if listening != nil {
		listening <- address
	}
	server, mount := a.newServer()
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			stop(fmt.Errorf("HTTP: %w", err))
		}
	})
	err = a.runServices(ctx, stop, "http://"+address, mount, server)
	_ = server.Close()
	serving.Wait()
	if err == nil && caller.Err() == nil {
		err = context.Cause(ctx)
	}
	return err
}

// runServices opens the services, runs them until ctx ends, and closes them. Relays and
// consumers stop before the HTTP interface, because a step in hand may call this very process.
// Requests that arrive in between leave their messages in the outbox.
func (a *App) runServices(ctx context.Context, stop context.CancelCauseFunc, own string, mount func(http.Handler), server *http.Server) error {
	defer a.closeServices()
	if err := a.openServices(ctx, own); err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it was starting
		}
		return err
	}
	mux := http.NewServeMux()
	for _, s := range a.services {
		s.Routes(mux)
	}
	mount(a.Wrap(mux))

	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var loops sync.WaitGroup
	a.startLoops(work, &loops, stop)
	a.started.Store(true)
	if !plaintext.ListensHere(a.Settings.Listen) && !a.Settings.AllowPlaintext {
		a.Logger.Warn("other machines reach this listener, which has no TLS and an interface for tests: put a proxy in front of it", "listen", a.Settings.Listen)
	}
	a.Logger.Info("serving", "services", a.Settings.Services, "url", own)
	var pages *consoleRun
	if a.Settings.Console {
		var err error
		if pages, err = a.Settings.startConsole(ctx, a.Settings.stderr, a.Logger); err != nil {
			stop(err)
		}
	}
	<-ctx.Done()
	if err := pages.close(); err != nil {
		a.Logger.Warn("the console did not end well", "error", err)
	}

	a.Logger.Info("stopping")
	a.started.Store(false)
	stopWork()
	loops.Wait()
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(finish); err != nil {
		a.Logger.Warn("requests were cut off", "error", err)
	}
	return nil
}

// startLoops starts the services' loops, which end with work. An error of a consumer stops the
// process.
func (a *App) startLoops(work context.Context, loops *sync.WaitGroup, stop context.CancelCauseFunc) {
	for _, s := range a.services {
		for _, sweeper := range s.Sweepers {
			loops.Go(func() { _ = sweeper.Run(work) })
		}
		if s.Consumer == nil {
			continue
		}
		loops.Go(func() { _ = s.Relay.Run(work) })
		loops.Go(func() {
			if err := s.runConsumer(work); err != nil {
				stop(err)
			}
		})
	}
}

func (a *App) openServices(ctx context.Context, own string) error {
	ctx, cancel := context.WithTimeout(ctx, a.Settings.StartTimeout)
	defer cancel()
	var err error
	if a.broker, err = OpenBroker(a.Settings.AMQPURL, a.Settings.Namespace, a.Settings.Restricted, a.Logger); err != nil {
		return BadSetting("AMQP_URL", "%v", err)
	}
	if err := a.declareQueues(ctx); err != nil {
		return err
	}
	for _, name := range a.Settings.Services {
		service, err := a.Settings.OpenService(ctx, name, func(s *Service) error {
			return a.Build(ctx, s, own, a.broker, a.Logger.With("service", name))
		})
		if err != nil {
			return err
		}
		a.services = append(a.services, service)
	}
	return nil
}

func (a *App) closeServices() {
	for _, s := range a.services {
		s.Close()
	}
	if a.broker != nil {
		_ = a.broker.Close()
	}
}

// declareQueues declares the queues that listen to messages of the services here. Their services may
// run in another process. A restricted user may neither declare nor look for them: the deployment has declared them.
func (a *App) declareQueues(ctx context.Context) error {
	if a.Settings.Restricted {
		return nil
	}
	p := a.Settings.Program
	for _, listener := range p.Services {
		topics := slices.DeleteFunc(slices.Clone(p.Listens[listener]), func(topic string) bool {
			return !slices.ContainsFunc(a.Settings.Services, func(own string) bool { return slices.Contains(p.Publishes[own], topic) })
		})
		if len(topics) == 0 {
			continue
		}
		if err := a.broker.Declare(ctx, listener, topics); err != nil {
			return fmt.Errorf("AMQP_URL: declare the queues of %s: %w", listener, err)
		}
	}
	return nil
}
