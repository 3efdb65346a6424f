package trip

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// instances are the sagas of trips, which customers look at and cancel.
type instances struct{ of *operator.Instances }

func newInstances(db *pgxpool.Pool, schema string) (*instances, error) {
	of, err := operator.NewInstances(db, &operator.Options{Schema: schema})
	return &instances{of}, err
}

func (t *tripRef) sagaAddress() saga.Address {
	return saga.Address{Scope: t.tenant, Key: t.key, Path: t.path}
}

// readInstance returns the view of a trip. Its error is errNoTrip, or the database's.
func (in *instances) readInstance(ctx context.Context, tx pgx.Tx, t tripRef) (view, error) {
	i, err := in.of.Read(ctx, tx, t.sagaAddress())
	switch {
	case errors.Is(err, saga.ErrNoInstance):
		return view{}, errNoTrip // it ended long ago, and its instance was removed
	case err != nil:
		return view{}, fmt.Errorf("trip: read: %w", err)
	}
	v := view{ID: t.id, Status: i.Status, Reason: i.Reason, Itinerary: t.itinerary}
	for _, s := range i.Steps {
		if s.Number > 0 { // 0: the step only groups other steps
			v.Steps = append(v.Steps, stepView{Step: s.Name, State: s.State, Attempts: s.Attempt, Reason: s.Reason})
		}
	}
	return v, nil
}

// cancelInstance has a trip compensated. Its error is errTooLate, errNoTrip, or the database's.
func (in *instances) cancelInstance(ctx context.Context, t tripRef) error {
	_, err := in.of.Decide(ctx, t.sagaAddress(), operator.Decision{Verb: operator.VerbCancel, By: t.tenant, Why: "by the customer"})
	switch {
	case errors.Is(err, saga.ErrNoInstance):
		return errNoTrip
	case errors.Is(err, operator.ErrRefused): // also if it is compensated already; the caller checks for that
		return errTooLate
	}
	return err
}
