package operator_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// Retry the instances that have been stuck for an hour, now that the cause is removed.
func ExampleInstances() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		instances, err := operator.NewInstances(db, &operator.Options{Schema: "trips"})
		if err != nil {
			return err
		}
		stuck := operator.InstanceFilter{Saga: "trip", Status: saga.StatusStuck, Silent: time.Hour}
		for after := (saga.Address{}); ; {
			page, err := instances.List(ctx, stuck, after, 100)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, i := range page {
				again := operator.Decision{Verb: operator.VerbRetry, By: "ann", Why: "the airline is back"}
				if _, err := instances.Decide(ctx, i.Address, again); err != nil {
					fmt.Println(i.Address, err) // refused, or gone
				}
				after = i.Address
			}
		}
	}
}
