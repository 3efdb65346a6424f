// Package gateway simulates a card processor. It stands for a third party: the services reach it
// by HTTP alone. Its ledger is durable, and it honours the Idempotency-Key with package idemkey, as
// processors do. A plain gateway keeps the key as a reference only, and moves money at each request.
package gateway

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/examples/internal/web"
	"github.com/sagamill/sagamill/examples/order-saga/internal/api"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
)

//go:embed migrations
var files embed.FS

// Migrations are the gateway's own tables.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// The known cards. All but tok_ok cause a failure or a delay.
const (
	cardOK        = "tok_ok"
	cardDeclined  = "tok_declined"
	cardFlaky     = "tok_flaky"      // 503 twice, then charges
	cardLostReply = "tok_lost_reply" // charges, then answers 504 the first time
	cardSlow      = "tok_slow"       // charges after slowness
)

const (
	slowness     = 2 * time.Second
	flakyRefuses = 2
)

const headerKey = "Idempotency-Key"

// A Service is the card processor.
type Service struct {
	db     *pgxpool.Pool
	schema string
	plain  bool
	idem   *idemkey.Middleware
	logger *slog.Logger

	// Sweeper removes expired idempotency records while it runs.
	Sweeper *idemkey.Sweeper
}

// NewService returns a Service whose ledger is in schema. If plain is true, it ignores idempotency.
func NewService(db *pgxpool.Pool, schema string, plain bool, logger *slog.Logger) (*Service, error) {
	store, err := idempg.New(db, &idempg.Options{Schema: schema})
	if err != nil {
		return nil, err
	}
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true, Limits: idemkey.Limits{MaxRequestBody: web.MaxBody}, Logger: logger})
	if err != nil {
		return nil, err
	}
	sweeper, err := idemkey.NewSweeper(store, &idemkey.SweeperOptions{Logger: logger})
	if err != nil {
		return nil, err
	}
	return &Service{db: db, schema: schema, plain: plain, idem: idem, logger: logger, Sweeper: sweeper}, nil
}

// AddRoutes adds the gateway's HTTP interface to mux.
func (s *Service) AddRoutes(mux *http.ServeMux) {
	mux.Handle("POST /charges", api.Program.RejectEncoded(dropMarkedReplies(s.runOncePerKey(s.chargeCard))))
	mux.Handle("POST /refunds", api.Program.RejectEncoded(s.runOncePerKey(s.refundCharge)))
	mux.Handle("GET /charges/{key}", s.serveMovement("charge"))
	mux.Handle("GET /refunds/{key}", s.serveMovement("refund"))
	mux.HandleFunc("GET /ledger", s.serveLedger)
}

// runOncePerKey runs h once for each key, unless the gateway is plain.
func (s *Service) runOncePerKey(h txHandler) http.Handler {
	if s.plain {
		return s.runEachTime(h)
	}
	return s.idem.Handler(idempg.HandleTx(h))
}

// An instruction is the body of both POSTs. A refund has no card and no currency.
type instruction struct {
	OrderID  string `json:"order_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Card     string `json:"card"`
}

func (m *instruction) readInstruction(w http.ResponseWriter, r *http.Request) bool {
	err := web.DecodeBody(r, m)
	if err == nil && (m.OrderID == "" || len(m.OrderID) > 100 || m.Amount <= 0) {
		err = errors.New("order_id must be 1 to 100 bytes and amount positive")
	}
	if err != nil {
		api.Program.WriteProblem(w, http.StatusBadRequest, "movement-invalid", err.Error())
	}
	return err == nil
}

func (s *Service) chargeCard(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	var m instruction
	if !m.readInstruction(w, r) {
		return nil
	}
	key, attempt, err := s.countRequest(r.Context(), tx, r)
	if err != nil {
		return err
	}
	switch m.Card {
	case cardOK:
	case cardSlow:
		select {
		case <-time.After(slowness):
		case <-r.Context().Done():
			return r.Context().Err()
		}
	case cardFlaky:
		// A 503 is rolled back and the key may run again. The middleware counts the attempts, or
		// for a plain gateway the table of references.
		if attempt <= flakyRefuses {
			api.Program.WriteProblem(w, http.StatusServiceUnavailable, "try-again", "the card's bank does not answer")
			return nil
		}
	case cardLostReply:
		if !s.plain || attempt == 1 { // a replay does not reach the handler
			w.Header().Set(headerLoseReply, "1")
		}
	case cardDeclined:
		api.Program.WriteProblem(w, http.StatusPaymentRequired, "card-declined", "card declined")
		return nil
	default:
		api.Program.WriteProblem(w, http.StatusPaymentRequired, "card-unknown", "card unknown")
		return nil
	}
	if err := s.insertEntry(r.Context(), tx, "charge", key, m); err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusCreated, map[string]any{"order_id": m.OrderID, "amount": m.Amount, "status": "charged"})
	return nil
}

// refundCharge pays back an order's charge. It answers 409 if the refunds would exceed the charge,
// as a second refund under another key does.
func (s *Service) refundCharge(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	var m instruction
	if !m.readInstruction(w, r) {
		return nil
	}
	key, _, err := s.countRequest(r.Context(), tx, r)
	if err != nil {
		return err
	}
	var charged, refunded int64
	// The lock serializes the refunds of one order.
	err = tx.QueryRow(r.Context(), "SELECT amount FROM "+s.schema+".ledger WHERE order_id = $1 AND kind = 'charge' ORDER BY id LIMIT 1 FOR UPDATE",
		m.OrderID).Scan(&charged)
	if errors.Is(err, pgx.ErrNoRows) {
		api.Program.WriteProblem(w, http.StatusNotFound, "charge-unknown", "there is no charge for this order")
		return nil
	}
	if err == nil {
		err = tx.QueryRow(r.Context(), "SELECT coalesce(sum(amount), 0) FROM "+s.schema+".ledger WHERE order_id = $1 AND kind = 'refund'", m.OrderID).Scan(&refunded)
	}
	if err != nil {
		return fmt.Errorf("gateway: look up charge: %w", err)
	}
	if refunded+m.Amount > charged {
		api.Program.WriteProblem(w, http.StatusConflict, "over-refund", "that is more than is left of the charge")
		return nil
	}
	if err := s.insertEntry(r.Context(), tx, "refund", key, m); err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusCreated, map[string]any{"order_id": m.OrderID, "amount": m.Amount, "status": "refunded"})
	return nil
}

func (s *Service) insertEntry(ctx context.Context, tx pgx.Tx, kind, key string, m instruction) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".ledger (kind, key, order_id, amount) VALUES ($1, $2, $3, $4)", kind, key, m.OrderID, m.Amount)
	if err != nil {
		return fmt.Errorf("gateway: enter %s: %w", kind, err)
	}
	return nil
}

// An Entry is one line of the ledger.
type Entry struct {
	Kind    string    `json:"kind"`
	Key     string    `json:"key"`
	OrderID string    `json:"order_id"`
	Amount  int64     `json:"amount"`
	At      time.Time `json:"at"`
}

// serveMovement returns a handler that answers with the movement of that kind under a key. If no
// request with the key moved money, it answers 404, and so it does after a decline.
func (s *Service) serveMovement(kind string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rows, _ := s.db.Query(r.Context(), "SELECT kind, key, order_id, amount, at FROM "+s.schema+".ledger WHERE kind = $1 AND key = $2 ORDER BY id LIMIT 1",
			kind, r.PathValue("key"))
		entry, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Entry])
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			api.Program.WriteProblem(w, http.StatusNotFound, "movement-unknown", "there is no "+kind+" with this key")
		case err != nil:
			w.Header().Set("Retry-After", "1")
			api.Program.WriteProblem(w, http.StatusServiceUnavailable, "store-unavailable", "the ledger cannot be read now")
		default:
			web.WriteJSON(w, http.StatusOK, entry)
		}
	})
}

func (s *Service) serveLedger(w http.ResponseWriter, r *http.Request) {
	rows, _ := s.db.Query(r.Context(), "SELECT kind, key, order_id, amount, at FROM "+s.schema+".ledger ORDER BY id")
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
	if err != nil {
		w.Header().Set("Retry-After", "1")
		api.Program.WriteProblem(w, http.StatusServiceUnavailable, "store-unavailable", "the ledger cannot be read now")
		return
	}
	web.WriteJSON(w, http.StatusOK, entries)
}
