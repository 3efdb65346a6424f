// Package api is the common part of the HTTP interfaces of trip-saga's services.
package api

import (
	"context"
	"net/http"
	"time"

	"github.com/sagamill/sagamill/examples/internal/web"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
)

// Program writes the problems of all services.
const Program web.Program = "trip-saga"

// ledgerTimeout limits how long a service's database may take for its ledger.
const ledgerTimeout = 10 * time.Second

// ServeLedger returns a handler that answers with the ledger that read returns.
func ServeLedger(read func(ctx context.Context) (command.Ledger, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), ledgerTimeout)
		defer cancel()
		ledger, err := read(ctx)
		if err != nil {
			w.Header().Set("Retry-After", "1")
			Program.WriteProblem(w, http.StatusServiceUnavailable, "store-unavailable", "the ledger cannot be read now")
			return
		}
		web.WriteJSON(w, http.StatusOK, ledger)
	}
}
