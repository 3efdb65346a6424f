package trip

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/examples/internal/web"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/api"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// A view is the body of GET /trips/{id}.
type view struct {
	ID        string      `json:"id"`
	Status    saga.Status `json:"status"`
	Reason    string      `json:"reason"`
	Steps     []stepView  `json:"steps"`
	Itinerary string      `json:"itinerary,omitempty"`
}

type stepView struct {
	Step     string             `json:"step"`
	State    operator.StepState `json:"state"`
	Attempts int                `json:"attempts"`
	Reason   string             `json:"reason,omitempty"`
}

// errNoTrip reports that the tenant has no such trip.
var errNoTrip = errors.New("there is no such trip")

// A tripRef names a trip and its saga's instance, and has the itinerary if it is written.
type tripRef struct{ id, tenant, key, path, itinerary string }

// A querier is a pool, or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// findTrip returns the trip that a request is for. The error is errNoTrip, or the database's.
func (s *Service) findTrip(ctx context.Context, in querier, r *http.Request) (tripRef, error) {
	tenant, err := web.ReadTenant(r)
	if err != nil {
		return tripRef{}, errNoTrip // cannot be: RequireTenant has checked it
	}
	t := tripRef{id: r.PathValue("id"), tenant: tenant}
	if uuid.Validate(t.id) != nil {
		return t, errNoTrip
	}
	err = in.QueryRow(ctx, `
SELECT t.id::text, t.key, t.path, coalesce(i.text, '') FROM `+s.schema+`.trip t LEFT JOIN `+s.schema+`.itinerary i ON i.trip_id = t.id
WHERE t.id = $1 AND t.tenant = $2`, t.id, tenant).Scan(&t.id, &t.key, &t.path, &t.itinerary)
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNoTrip
	}
	return t, err
}

// snapshotTx has one snapshot for a trip and its saga, so that a completed trip is shown with its
// itinerary.
var snapshotTx = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

// readTrip returns the view of the trip that a request is for.
func (s *Service) readTrip(ctx context.Context, r *http.Request) (v view, err error) {
	err = pgx.BeginTxFunc(ctx, s.db, snapshotTx, func(tx pgx.Tx) error {
		t, err := s.findTrip(ctx, tx, r)
		if err == nil {
			v, err = s.instances.readInstance(ctx, tx, t)
		}
		return err
	})
	return v, err
}

// showTrip answers with the status of a trip. For another tenant's trip it answers 404.
func (s *Service) showTrip(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookTime)
	defer cancel()
	v, err := s.readTrip(ctx, r)
	if err != nil {
		writeFailure(w, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	web.WriteJSON(w, http.StatusOK, v)
}

// cancelTrip compensates a trip whose ticket has not been asked for. A repeated request changes
// nothing and gets the same answer.
func (s *Service) cancelTrip(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookTime)
	defer cancel()
	t, err := s.findTrip(ctx, s.db, r)
	if err == nil {
		err = s.instances.cancelInstance(ctx, t)
	}
	if err != nil && !errors.Is(err, errTooLate) {
		writeFailure(w, err)
		return
	}
	v, lookErr := s.readTrip(ctx, r)
	compensates := v.Status == saga.StatusCompensating || v.Status == saga.StatusCompensated
	switch {
	case lookErr != nil:
		writeFailure(w, lookErr)
	case err != nil && !compensates:
		api.Program.WriteProblem(w, http.StatusConflict, "trip-committed", err.Error())
	default:
		web.WriteJSON(w, http.StatusAccepted, v)
	}
}

// errTooLate reports that a trip has passed its pivot or has ended.
var errTooLate = errors.New("the ticket has been asked for: the trip cannot be cancelled any more")

func writeFailure(w http.ResponseWriter, err error) {
	if errors.Is(err, errNoTrip) {
		api.Program.WriteProblem(w, http.StatusNotFound, "trip-unknown", errNoTrip.Error())
		return
	}
	w.Header().Set("Retry-After", "1")
	api.Program.WriteProblem(w, http.StatusServiceUnavailable, "store-unavailable", "the trip cannot be looked up now")
}
