package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/examples/trip-saga/internal/web"
	"github.com/sagamill/sagamill/internal/plaintext"
)

const (
	shutdownTimeout = 30 * time.Second // for requests in hand
	readyTimeout    = 2 * time.Second  // for one look whether the database answers
)

// serve runs services until ctx ends, and then lets them finish what they have
// in hand.
func serve(ctx context.Context, args []string, stderr io.Writer) error {
	s, err := parseServe(args, stderr)
	if err != nil {
		return err
	}
	provided, err := s.provide(ctx, stderr)
	if provided != nil {
		defer provided.Close()
	}
	if err != nil {
		return err
	}
	a := &app{settings: s, logger: slog.New(slog.NewTextHandler(stderr, nil))}
	slog.SetDefault(a.logger) // for what has no logger of its own
	return a.run(ctx, nil)
}

// An app is one process of the example.
type app struct {
	settings *settings
	logger   *slog.Logger
	broker   broker
	nodes    []*node
	started  atomic.Bool // migrated, declared, and every loop running
}

// run serves until ctx ends. The HTTP interface is there from the beginning,
// for liveness; it is ready later. listening, if it is not nil, is told the
// address.
func (a *app) run(caller context.Context, listening chan<- string) error {
	ctx, stop := context.WithCancelCause(caller)
	defer stop(nil)
	listener, err := net.Listen("tcp", a.settings.listen)
	if err != nil {
		return badSetting("-listen", "%v", err)
	}
	address := listener.Addr().String()
	if listening != nil {
		listening <- address
	}
	server, mount := a.server()
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

// runServices opens the nodes, runs them until ctx ends, and closes them.
// Trips that come in between are in the outbox.
func (a *app) runServices(ctx context.Context, stop context.CancelCauseFunc, own string, mount func(http.Handler), server *http.Server) error {
	defer func() {
		for _, n := range a.nodes {
			n.close()
		}
		if a.broker != nil {
			_ = a.broker.Close()
		}
	}()
	if err := a.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while starting
		}
		return err
	}
	mux := http.NewServeMux()
	for _, n := range a.nodes {
		n.routes(mux)
	}
	mount(web.Problems(mux))

	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var loops sync.WaitGroup
	for _, n := range a.nodes {
		for _, s := range n.sweepers {
			loops.Go(func() { _ = s.Run(work) })
		}
		loops.Go(func() { _ = n.relay.Run(work) })
		loops.Go(func() {
			if err := n.run(work); err != nil {
				stop(err)
			}
		})
	}
	a.started.Store(true)
	if !plaintext.ListensHere(a.settings.listen) && !a.settings.allowPlaintext {
		a.logger.Warn("other machines reach this listener, which has no TLS and an interface for tests: put a proxy in front of it", "listen", a.settings.listen)
	}
	a.logger.Info("serving", "services", a.settings.services, "url", own)
	<-ctx.Done()

	a.logger.Info("stopping")
	a.started.Store(false)
	stopWork()
	loops.Wait()
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(finish); err != nil {
		a.logger.Warn("requests were cut off", "error", err)
	}
	return nil
}

func (a *app) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.settings.startTimeout)
	defer cancel()
	s := a.settings
	var err error
	if a.broker, err = openBroker(s.amqpURL, s.namespace, s.restricted, a.logger); err != nil {
		return badSetting("AMQP_URL", "%v", err)
	}
	if err := a.declare(ctx); err != nil {
		return err
	}
	for _, name := range s.services {
		n, err := openNode(ctx, name, s, a.broker, a.logger)
		if err != nil {
			return err
		}
		a.nodes = append(a.nodes, n)
	}
	return nil
}

// declare makes sure that whoever listens gets what the services here publish.
func (a *app) declare(ctx context.Context) error {
	for _, listener := range serviceNames {
		topics := slices.DeleteFunc(slices.Clone(listens[listener]), func(topic string) bool {
			return !slices.ContainsFunc(a.settings.services, func(own string) bool { return slices.Contains(publishes[own], topic) })
		})
		if len(topics) == 0 {
			continue
		}
		if err := a.broker.declare(ctx, listener, topics); err != nil {
			return fmt.Errorf("AMQP_URL: declare the queues of %s: %w", listener, err)
		}
	}
	return nil
}

// server returns an HTTP server that answers /healthz and /readyz at once, and
// everything else once mount was called.
func (a *app) server() (server *http.Server, mount func(http.Handler)) {
	var services atomic.Pointer[http.Handler]
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		web.JSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET /metrics", a.metrics)
	handler := func(w http.ResponseWriter, r *http.Request) {
		if _, own := mux.Handler(r); own != "" {
			mux.ServeHTTP(w, r)
		} else if h := services.Load(); h != nil {
			(*h).ServeHTTP(w, r)
		} else {
			w.Header().Set("Retry-After", "1")
			web.Problem(w, http.StatusServiceUnavailable, "starting", "the service is not ready yet")
		}
	}
	return &http.Server{
		Handler:           http.HandlerFunc(handler),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second, // longer than a handler may run
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}, func(h http.Handler) { services.Store(&h) }
}

// readyz says 200 once every service here is migrated, connected and
// consuming.
func (a *app) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	err := errors.New("starting or stopping")
	if a.started.Load() {
		err = nil
		for _, n := range a.nodes {
			err = errors.Join(err, n.ready(ctx))
		}
	}
	if err != nil {
		web.Problem(w, http.StatusServiceUnavailable, "not-ready", err.Error())
		return
	}
	web.JSON(w, http.StatusOK, map[string]string{"status": "ready"})
}
