package demo

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill/examples/internal/web"
)

// readyTimeout limits how long the databases may take to answer /readyz.
const readyTimeout = 2 * time.Second

// newServer returns an HTTP server that answers /healthz, /readyz and /metrics at once, and all
// other paths after mount was called.
func (a *App) newServer() (server *http.Server, mount func(http.Handler)) {
	var services atomic.Pointer[http.Handler]
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", a.serveReadiness)
	mux.HandleFunc("GET /metrics", a.serveMetrics)
	handler := func(w http.ResponseWriter, r *http.Request) {
		if _, own := mux.Handler(r); own != "" {
			mux.ServeHTTP(w, r)
		} else if h := services.Load(); h != nil {
			(*h).ServeHTTP(w, r)
		} else {
			w.Header().Set("Retry-After", "1")
			a.writeProblem(w, "starting", "the service is not ready yet")
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

// serveReadiness answers 200 once every service here is migrated, connected and consuming.
func (a *App) serveReadiness(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	err := errors.New("starting or stopping")
	if a.started.Load() {
		err = nil
		for _, s := range a.services {
			err = errors.Join(err, s.checkReady(ctx))
		}
	}
	if err != nil {
		a.writeProblem(w, "not-ready", err.Error())
		return
	}
	web.WriteJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// writeProblem answers 503 in application/problem+json.
func (a *App) writeProblem(w http.ResponseWriter, code, detail string) {
	web.Program(a.Settings.Program.Name).WriteProblem(w, http.StatusServiceUnavailable, code, detail)
}
