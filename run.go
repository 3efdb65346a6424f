package sagamill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	readHeaderTimeout = 10 * time.Second
	shutdownTimeout   = 30 * time.Second // for requests in hand
)

// errRanBefore is returned by the second call of Run.
var errRanBefore = errors.New("sagamill: a Service runs once; make another one with New")

// Run prepares the service and runs it until ctx ends: relay, consumer, orchestrator, sweepers. Then it stops in this
// order, and returns nil: no new messages are taken, handlers finish, and last the relay stops and all is closed.
// What is not finished within the options' DrainTimeout is delivered again. An error of any part stops the others. If a
// handler ignores the end of its context, Run returns an error and leaves its goroutine and its connection behind.
//
// A crash at any point loses nothing: see the guarantees of the packages.
func (s *Service) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errRanBefore
	}
	return s.runAll(ctx, nil, nil)
}

// ListenAndServe is [Service.Run] with an HTTP server at address, such as ":8080". The server answers from the start,
// with the health checks of [Service.Handler] if handler has them; requests behind [Service.Idempotent] get a 503
// until the service is prepared. In the end, requests are taken until the handlers of messages have finished, because
// those may call this very server. Then it finishes the requests in hand, for at most 30 s, and then the relay stops.
func (s *Service) ListenAndServe(ctx context.Context, address string, handler http.Handler) error {
	if s.started.Swap(true) {
		return errRanBefore // without Close: the first call still uses the service
	}
	listener, err := net.Listen("tcp", address) // before anything is started: the port may be taken
	if err != nil {
		return errors.Join(fmt.Errorf("sagamill: service %s: %w", s.config.Name, err), s.Close())
	}
	return s.runAll(ctx, listener, handler)
}

func (s *Service) runAll(caller context.Context, listener net.Listener, handler http.Handler) error {
	group, ctx := errgroup.WithContext(caller)
	stages := newStages(caller)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout}
	if listener != nil {
		group.Go(func() error { return ignoreClosed(server.Serve(listener)) })
	}
	group.Go(func() error {
		if err := s.Prepare(ctx); err != nil {
			if caller.Err() != nil {
				return nil // the caller has stopped it; some errors do not say so
			}
			return err
		}
		s.startParts(group, stages)
		s.config.Logger.InfoContext(ctx, "sagamill: the service runs", "service", s.config.Name, "schema", s.config.Schema, "topics", s.topics())
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		s.stopping.Store(true)
		return s.stopInOrder(stages, server)
	})
	return errors.Join(group.Wait(), s.Close())
}

// stages are the contexts of the parts, in the order in which they end.
type stages struct {
	mu         sync.Mutex
	stopped    bool
	intake     context.Context // of what takes messages
	background context.Context // of the relay and the sweepers
	stopIntake context.CancelFunc
	stopRest   context.CancelFunc
	takers     sync.WaitGroup
}

func newStages(caller context.Context) *stages {
	base := &stages{}
	base.intake, base.stopIntake = context.WithCancel(context.WithoutCancel(caller))
	base.background, base.stopRest = context.WithCancel(context.WithoutCancel(caller))
	return base
}

// startParts starts all loops, unless the service is already stopping.
func (s *Service) startParts(group *errgroup.Group, stages *stages) {
	stages.mu.Lock()
	defer stages.mu.Unlock()
	if stages.stopped {
		return
	}
	for _, part := range append([]runner{s.relay}, s.sweepers...) {
		group.Go(func() error { return part.Run(stages.background) })
	}
	var takers []runner
	if s.consumer != nil {
		takers = append(takers, s.consumer)
	}
	if s.orchestrator != nil {
		takers = append(takers, s.orchestrator)
	}
	for _, taker := range takers {
		stages.takers.Add(1)
		group.Go(func() error {
			defer stages.takers.Done()
			return taker.Run(stages.intake)
		})
	}
}

// stopInOrder ends the stages one after the other.
func (s *Service) stopInOrder(stages *stages, server *http.Server) error {
	stages.mu.Lock()
	stages.stopped = true
	stages.mu.Unlock()
	stages.stopIntake()
	stages.takers.Wait()
	finish, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(finish); err != nil {
		s.config.Logger.Warn("sagamill: requests were cut off", "service", s.config.Name, "error", err)
		_ = server.Close()
	}
	var err error
	for _, closer := range s.intake {
		err = errors.Join(err, closer.Close())
	}
	stages.stopRest()
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("sagamill: HTTP: %w", err)
}
