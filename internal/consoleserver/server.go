// Package consoleserver serves the console at an address of this machine, to whoever has the URL with its token. The
// command console and the demos share it. A service mounts package console behind its own login instead.
package consoleserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/console"
)

const (
	headerTimeout   = 10 * time.Second
	idleTimeout     = 2 * time.Minute
	maxHeader       = 32 << 10
	shutdownTimeout = 30 * time.Second
)

// Options say who uses the console.
type Options struct {
	Address string // to listen at, such as 127.0.0.1:0
	Actor   console.Actor
	Role    console.Role
	Console console.Options // without Authorize
}

// A Server has the address, and does not answer yet.
type Server struct {
	listener net.Listener
	access   *access
	pages    *console.Console
}

// Listen opens the address. Call [Server.Serve], which closes it.
func Listen(ctx context.Context, databases []console.Database, o *Options) (*Server, error) {
	s := &Server{access: newAccess(o.Actor, o.Role)}
	options := o.Console
	options.Authorize = s.access.authorize
	var err error
	if s.pages, err = console.New(databases, &options); err != nil {
		return nil, err
	}
	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.Address); err != nil {
		return nil, fmt.Errorf("console: listen: %w", err)
	}
	s.access.bind(s.listener.Addr(), o.Address)
	return s, nil
}

// URL returns the URL with the token.
func (s *Server) URL() string { return s.access.firstURL() }

// Serve serves until ctx ends. Then streams end, changes stop between two objects, and requests in hand finish.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{Handler: s.access.wrap(s.pages), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- server.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("console: serve: %w", err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := errors.Join(s.pages.Shutdown(ending), server.Shutdown(ending))
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return err
}
