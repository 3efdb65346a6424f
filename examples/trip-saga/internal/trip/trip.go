// Package trip is the service that accepts trips, and the definition of their saga.
package trip

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/examples/internal/web"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/api"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/command"
	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idempg"
	"github.com/sagamill/sagamill/saga"
)

//go:embed migrations
var files embed.FS

// Migrations are the service's own tables.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// A Service accepts trips.
type Service struct {
	db        *pgxpool.Pool
	schema    string
	starter   *saga.Starter[State]
	instances *instances
	idem      *idemkey.Middleware
	wake      func()

	// Sweeper removes expired idempotency records while it runs.
	Sweeper *idemkey.Sweeper
}

// grace limits how long a key stays claimed if its process is killed before the request's first
// statement, which comes much sooner. A customer who repeats the request waits so long.
const grace = 3 * time.Second

// NewService returns a Service whose tables are in schema, and whose trips are instances of d. It
// calls wake after each commit that may have put something into the outbox.
func NewService(db *pgxpool.Pool, schema string, d *saga.Definition[State], wake func(), logger *slog.Logger) (*Service, error) {
	starter, err := saga.NewStarter(d, &saga.StarterOptions{Schema: schema})
	if err != nil {
		return nil, err
	}
	instances, err := newInstances(db, schema)
	if err != nil {
		return nil, err
	}
	store, err := idempg.New(db, &idempg.Options{Schema: schema, Grace: grace})
	if err != nil {
		return nil, err
	}
	idem, err := idemkey.New(store, &idemkey.Options{Scope: web.ReadTenant, Limits: idemkey.Limits{MaxRequestBody: web.MaxBody}, Logger: logger})
	if err != nil {
		return nil, err
	}
	sweeper, err := idemkey.NewSweeper(store, &idemkey.SweeperOptions{Logger: logger})
	if err != nil {
		return nil, err
	}
	return &Service{db: db, schema: schema, starter: starter, instances: instances, idem: idem, wake: wake, Sweeper: sweeper}, nil
}

// AddRoutes adds the service's HTTP interface to mux.
func (s *Service) AddRoutes(mux *http.ServeMux) {
	create := api.Program.RejectEncoded(s.idem.Handler(idempg.HandleTx(s.createTrip)))
	mux.Handle("POST /trips", api.Program.RequireTenant(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		create.ServeHTTP(w, r)
		s.wake()
	})))
	mux.Handle("GET /trips/{id}", api.Program.RequireTenant(http.HandlerFunc(s.showTrip)))
	mux.Handle("DELETE /trips/{id}", api.Program.RequireTenant(http.HandlerFunc(s.cancelTrip)))
	mux.HandleFunc("GET /ledger/trip", api.ServeLedger(s.readLedger))
}

// A request is the body of POST /trips.
type request struct {
	Traveller string `json:"traveller"`
	Flight    string `json:"flight"`
	Hotel     string `json:"hotel"`
	Car       string `json:"car"`
	Budget    int64  `json:"budget"`
}

var (
	traveller = regexp.MustCompile(`^[\pL\pN][\pL\pN .'-]{0,99}$`)
	item      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,39}$`)
)

// maxBudget is the most that a trip may cost, in cents.
const maxBudget = 100_000_000

// checkRequest returns an error for the client if a member of the request is invalid.
func (t *request) checkRequest() error {
	switch {
	case !traveller.MatchString(t.Traveller):
		return errors.New("traveller must be 1 to 100 letters, digits, spaces or .'-")
	case !item.MatchString(t.Flight):
		return errors.New("flight must be 1 to 40 letters, digits or dashes, such as LH100")
	case !item.MatchString(t.Hotel):
		return errors.New("hotel must be 1 to 40 letters, digits or dashes, such as grand")
	case t.Car != "" && !item.MatchString(t.Car):
		return errors.New("car must be left out, or 1 to 40 letters, digits or dashes, such as compact")
	case t.Budget < 1 || t.Budget > maxBudget:
		return fmt.Errorf("budget must be 1 to %d, in cents", maxBudget)
	}
	return nil
}

// createTrip accepts a trip. The middleware runs it once for the request's key, and commits tx
// together with the response. Key, trip, instance and first commands are stored together or not at
// all.
func (s *Service) createTrip(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	var t request
	if err := web.DecodeBody(r, &t); err != nil {
		api.Program.WriteProblem(w, http.StatusBadRequest, "body-invalid", err.Error())
		return nil
	}
	if err := t.checkRequest(); err != nil {
		api.Program.WriteProblem(w, http.StatusUnprocessableEntity, "trip-invalid", err.Error())
		return nil
	}
	started, err := s.startSaga(r.Context(), tx, &t)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/trips/"+started.ID)
	web.WriteJSON(w, http.StatusAccepted, map[string]string{"id": started.ID, "status": string(started.Status)})
	return nil
}

func (s *Service) startSaga(ctx context.Context, tx pgx.Tx, t *request) (saga.Started, error) {
	started, err := s.starter.Start(ctx, tx, saga.ID{},
		State{Traveller: t.Traveller, Flight: t.Flight, Hotel: t.Hotel, Car: t.Car, Budget: t.Budget})
	if err != nil || started.Existed { // the record of the key was lost: the trip is there
		return started, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+s.schema+".trip (id, tenant, key, path, traveller) VALUES ($1, $2, $3, $4, $5)",
		started.ID, started.Address.Scope, started.Address.Key, started.Address.Path, t.Traveller)
	if err != nil {
		return started, fmt.Errorf("trip: insert: %w", err)
	}
	return started, nil
}

func (s *Service) readLedger(ctx context.Context) (l command.Ledger, err error) {
	rows, _ := s.db.Query(ctx, "SELECT trip_id::text, '', 'written', '', at FROM "+s.schema+".itinerary ORDER BY at")
	l.Entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[command.Entry])
	return l, err
}

// lookTime limits how long the database may take for one answer.
const lookTime = 5 * time.Second
