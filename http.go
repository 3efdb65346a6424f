package sagamill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/idemkey"
)

// readyTimeout limits how long a readiness check waits for the database.
const readyTimeout = 2 * time.Second

// Idempotent puts the idempotency middleware before handler: it runs once for a key of a scope, in a transaction that
// commits with the record of the key. Make handler with [idempg.HandleTx]. Messages that it writes with
// [Service.Writer] and sagas that it starts belong to the request's key. After the commit the relay is woken.
//
// scope returns whom the key belongs to, as idemkey.Options.Scope does; nil means the one of Config.Idempotency.
// Idempotent panics, as http.ServeMux does, if handler is nil, or neither scope nor the Config says whose keys they
// are. Until the service is prepared, requests are answered with 503.
//
// [idempg.HandleTx]: https://pkg.go.dev/github.com/sagamill/sagamill/idemkey/idempg#HandleTx
func (s *Service) Idempotent(scope func(*http.Request) (string, error), handler http.Handler) http.Handler {
	own := &s.config.Idempotency
	if handler == nil || scope == nil && own.Scope == nil && !own.SingleTenant {
		panic("sagamill: Idempotent needs a handler, and a scope: its own, or Config.Idempotency.Scope or SingleTenant")
	}
	keys := s.keys
	if scope != nil {
		var err error
		keys, err = s.keys.With(func(o *idemkey.Options) { o.Scope, o.SingleTenant = scope, false })
		if err != nil {
			panic(fmt.Sprintf("sagamill: Idempotent: %v", err)) // New has checked all other options
		}
	}
	covered := keys.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if entered, ok := r.Context().Value(enteredKey{}).(*atomic.Bool); ok {
			entered.Store(true)
		}
		handler.ServeHTTP(w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.prepared.Load() {
			idemkey.WriteProblem(w, r, &idemkey.Problem{
				Type: "about:blank", Code: "starting", Title: "The service is starting", Status: http.StatusServiceUnavailable,
				Retryable: true, SameKey: true, RetryAfter: time.Second,
			})
			return
		}
		var entered atomic.Bool
		defer func() {
			if entered.Load() { // its transaction may have committed messages
				s.relay.Wake()
			}
		}()
		covered.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), enteredKey{}, &entered)))
	})
}

// enteredKey is the context key of a flag: the request has entered its handler.
type enteredKey struct{}

// Handler returns a handler of four paths, for the caller's mux:
//
//	/healthz   200 while the process serves
//	/readyz    200 once the service is prepared and subscribed, and while its database answers; else 503 with what is missing
//	/metrics   in Prometheus' format; 404 with Config.Telemetry, which says where metrics go
//	/topology  what [Service.Topology] returns, as JSON
//
// They have no authentication: keep them from callers outside.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.CheckReady(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	if s.exporter != nil {
		mux.Handle("GET /metrics", s.exporter)
	}
	mux.HandleFunc("GET /topology", s.serveTopology)
	return mux
}

func (s *Service) serveTopology(w http.ResponseWriter, r *http.Request) {
	description, err := s.Topology()
	if err != nil {
		s.config.Logger.ErrorContext(r.Context(), "sagamill: the service cannot be described", "service", s.config.Name, "error", err)
		http.Error(w, "the service cannot be described; its log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(description) // the client may be gone
}

// CheckReady returns nil if the service is prepared, has all its subscriptions and reaches its database. Otherwise
// the error has a line for each thing that is missing.
func (s *Service) CheckReady(ctx context.Context) error {
	var missing []string
	if !s.prepared.Load() {
		missing = append(missing, "tables and queues are not prepared")
	}
	if s.stopping.Load() {
		missing = append(missing, "the service is stopping")
	}
	if s.consumer != nil && !s.consumer.Ready() {
		missing = append(missing, "the steps are not subscribed, or paused without their database")
	}
	if s.orchestrator != nil && !s.orchestrator.Ready() {
		missing = append(missing, "the sagas are not subscribed, or paused without their database")
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := s.db.Ping(ctx); err != nil {
		missing = append(missing, "the database does not answer")
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New(s.config.Name + ": " + strings.Join(missing, "\n"+s.config.Name+": "))
}
