// Package order is the service that accepts orders and shows their status. One transaction stores
// an order and the message that begins its saga. Afterwards the service only records the messages
// of the other services.
package order

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/examples/internal/web"
	"github.com/sagamill/sagamill/examples/order-saga/internal/api"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/outbox"
)

//go:embed migrations
var files embed.FS

// Migrations are the service's own tables.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// A Service accepts orders.
type Service struct {
	db     *pgxpool.Pool
	outbox *outbox.Writer
	schema string
	idem   *idemkey.Middleware
	wake   func()

	// Sweeper removes expired idempotency records while it runs.
	Sweeper *idemkey.Sweeper
}

// Watchers observe the service. The zero value observes nothing.
type Watchers struct {
	Tracer   outbox.WriterTracer
	Requests idemkey.Observer
}

// NewService returns a Service whose tables are in schema. It calls wake after each commit that may
// have put something into the outbox.
func NewService(db *pgxpool.Pool, schema string, wake func(), w Watchers, logger *slog.Logger) (*Service, error) {
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema, Tracer: w.Tracer})
	if err != nil {
		return nil, err
	}
	store, err := idempg.New(db, &idempg.Options{Schema: schema})
	if err != nil {
		return nil, err
	}
	idem, err := idemkey.New(store, &idemkey.Options{Scope: web.ReadTenant, Limits: idemkey.Limits{MaxRequestBody: web.MaxBody}, Observer: w.Requests, Logger: logger})
	if err != nil {
		return nil, err
	}
	sweeper, err := idemkey.NewSweeper(store, &idemkey.SweeperOptions{Logger: logger})
	if err != nil {
		return nil, err
	}
	return &Service{db: db, outbox: writer, schema: schema, idem: idem, wake: wake, Sweeper: sweeper}, nil
}

// AddRoutes adds the service's HTTP interface to mux.
func (s *Service) AddRoutes(mux *http.ServeMux) {
	create := api.Program.RejectEncoded(s.idem.Handler(idempg.HandleTx(s.createOrder)))
	mux.Handle("POST /orders", api.Program.RequireTenant(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		create.ServeHTTP(w, r)
		s.wake()
	})))
	mux.Handle("GET /orders/{id}", api.Program.RequireTenant(http.HandlerFunc(s.showOrder)))
}

// A request is the body of POST /orders.
type request struct {
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Card     string `json:"card"`
}

var (
	currency = regexp.MustCompile(`^[A-Z]{3}$`)
	card     = regexp.MustCompile(`^tok_[a-z0-9_]{1,60}$`)
	item     = regexp.MustCompile(`^[\pL\pN][\pL\pN ._-]{0,99}$`)
)

// The limits of one order.
const (
	maxQuantity = 1000
	maxAmount   = 100_000_000
)

// checkRequest returns an error for the client if a member of the request is invalid.
func (o *request) checkRequest() error {
	switch {
	case !item.MatchString(o.Item):
		return errors.New("item must be 1 to 100 letters, digits, spaces or ._-")
	case o.Quantity < 1 || o.Quantity > maxQuantity:
		return fmt.Errorf("quantity must be 1 to %d", maxQuantity)
	case o.Amount < 1 || o.Amount > maxAmount:
		return fmt.Errorf("amount must be 1 to %d, in the currency's minor unit", maxAmount)
	case !currency.MatchString(o.Currency):
		return errors.New("currency must be three capital letters, such as EUR")
	case !card.MatchString(o.Card):
		return errors.New("card must be a card token, such as tok_ok")
	}
	return nil
}

// createOrder accepts an order. The middleware runs it once for the request's key, and commits tx
// together with the response.
func (s *Service) createOrder(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	var o request
	if err := web.DecodeBody(r, &o); err != nil {
		api.Program.WriteProblem(w, http.StatusBadRequest, "body-invalid", err.Error())
		return nil
	}
	if err := o.checkRequest(); err != nil {
		api.Program.WriteProblem(w, http.StatusUnprocessableEntity, "order-invalid", err.Error())
		return nil
	}
	id, err := s.storeOrder(r.Context(), tx, o)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/orders/"+id)
	web.WriteJSON(w, http.StatusAccepted, map[string]string{"id": id, "status": "pending"})
	return nil
}

// storeOrder writes the order, its steps and the message that begins the saga. It returns the
// order's ID.
func (s *Service) storeOrder(ctx context.Context, tx pgx.Tx, o request) (string, error) {
	key, ok := idemkey.Info(ctx)
	if !ok {
		return "", errors.New("order: the request has no idempotency key")
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(event.Order{
		OrderID: id.String(), Item: o.Item, Quantity: o.Quantity, Amount: o.Amount, Currency: o.Currency, Card: o.Card,
	})
	if err != nil {
		return "", err
	}
	batch := &pgx.Batch{}
	batch.Queue("INSERT INTO "+s.schema+".orders (id, tenant, item, quantity, amount, currency) VALUES ($1, $2, $3, $4, $5, $6)",
		id, key.Scope, o.Item, o.Quantity, o.Amount, o.Currency)
	for i, step := range event.Steps {
		batch.Queue("INSERT INTO "+s.schema+".order_step (order_id, position, step) VALUES ($1, $2, $3)", id, i, step)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return "", fmt.Errorf("order: insert: %w", err)
	}
	return id.String(), s.outbox.Write(ctx, tx, outbox.Message{
		Topic: event.OrderCreated, Step: event.ProcessPayment, Payload: body,
	})
}

// A view is the body of GET /orders/{id}.
type view struct {
	ID     string     `json:"id"`
	Status string     `json:"status"`
	Reason string     `json:"reason"`
	Steps  []stepView `json:"steps"`
}

type stepView struct {
	Step     string    `json:"step"`
	State    string    `json:"state"`
	Attempts int       `json:"attempts"`
	At       time.Time `json:"at"`
}

// showOrder answers with the status of an order. For another tenant's order it answers 404.
func (s *Service) showOrder(w http.ResponseWriter, r *http.Request) {
	tenant, err := web.ReadTenant(r)
	if err != nil {
		api.Program.WriteProblem(w, http.StatusUnauthorized, "scope-missing", err.Error())
		return
	}
	v, err := s.findOrder(r.Context(), r.PathValue("id"), tenant)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		api.Program.WriteProblem(w, http.StatusNotFound, "order-unknown", "there is no such order")
	case err != nil:
		w.Header().Set("Retry-After", "1")
		api.Program.WriteProblem(w, http.StatusServiceUnavailable, "store-unavailable", "the order cannot be looked up now")
	default:
		w.Header().Set("Cache-Control", "no-store")
		web.WriteJSON(w, http.StatusOK, v)
	}
}

// findOrder reads the order and its steps in one statement, hence in one snapshot. The error is
// pgx.ErrNoRows if the tenant has no such order.
func (s *Service) findOrder(ctx context.Context, id, tenant string) (view, error) {
	if uuid.Validate(id) != nil {
		return view{}, pgx.ErrNoRows
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rows, _ := s.db.Query(ctx, `
SELECT o.id, o.status, o.reason, st.step, st.state, st.attempts, st.at
FROM `+s.schema+`.orders o JOIN `+s.schema+`.order_step st ON st.order_id = o.id
WHERE o.id = $1 AND o.tenant = $2
ORDER BY st.position`, id, tenant)
	var v view
	var st stepView
	_, err := pgx.ForEachRow(rows, []any{&v.ID, &v.Status, &v.Reason, &st.Step, &st.State, &st.Attempts, &st.At}, func() error {
		v.Steps = append(v.Steps, st)
		return nil
	})
	if err == nil && v.ID == "" {
		err = pgx.ErrNoRows
	}
	return v, err
}
