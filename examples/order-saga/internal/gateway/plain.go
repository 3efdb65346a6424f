package gateway

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/examples/order-saga/internal/api"
	"github.com/sagamill/sagamill/idemkey"
)

// maxReference is how long a reference may be, in bytes.
const maxReference = 255

type txHandler func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error

// runEachTime runs h for every request regardless of its key, as a processor without idempotency
// does. It sends the answer after h's transaction has committed.
func (s *Service) runEachTime(h txHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get(headerKey); key == "" || len(key) > maxReference {
			api.Program.WriteProblem(w, http.StatusBadRequest, "key-missing", "send 1 to 255 bytes of "+headerKey+" as a reference")
			return
		}
		answer := &heldResponse{header: http.Header{}, status: http.StatusOK}
		err := pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) error { return h(answer, r, tx) })
		if err != nil {
			s.logger.ErrorContext(r.Context(), "gateway", "error", err)
			api.Program.WriteProblem(w, http.StatusServiceUnavailable, "store-unavailable", "it is not known whether this was done")
			return
		}
		answer.sendResponse(w)
	})
}

// A heldResponse keeps a response until it may be sent.
type heldResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (h *heldResponse) Header() http.Header         { return h.header }
func (h *heldResponse) Write(b []byte) (int, error) { return h.body.Write(b) }
func (h *heldResponse) WriteHeader(status int)      { h.status = status }

func (h *heldResponse) sendResponse(w http.ResponseWriter) {
	for name, values := range h.header {
		w.Header()[name] = values
	}
	w.WriteHeader(h.status)
	_, _ = w.Write(h.body.Bytes())
}

// countRequest returns the request's key, and the number of requests with it including this one.
func (s *Service) countRequest(ctx context.Context, tx pgx.Tx, r *http.Request) (key string, attempt int, err error) {
	if !s.plain {
		info, _ := idemkey.Info(ctx)
		return info.Key, info.Attempt, nil
	}
	key = r.Header.Get(headerKey)
	err = tx.QueryRow(ctx, "INSERT INTO "+s.schema+".reference AS r (key, attempts) VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET attempts = r.attempts + 1 RETURNING attempts",
		key).Scan(&attempt)
	if err != nil {
		return "", 0, fmt.Errorf("gateway: count %s: %w", headerKey, err)
	}
	return key, attempt, nil
}
