package saga_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/saga"
)

// What has been stuck for an hour is tried again, now that its cause is mended.
func ExampleInstances() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		instances, err := saga.NewInstances(db, &saga.InstancesOptions{Schema: "trips"})
		if err != nil {
			return err
		}
		stuck := saga.Filter{Saga: "trip", Status: saga.StatusStuck, Silent: time.Hour}
		for after := (saga.Address{}); ; {
			page, err := instances.List(ctx, stuck, after, 100)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, i := range page {
				again := saga.Decision{Verb: saga.VerbRetry, By: "ann", Why: "the airline is back"}
				if _, err := instances.Decide(ctx, i.Address, again); err != nil {
					fmt.Println(i.Address, err) // refused, or gone
				}
				after = i.Address
			}
		}
	}
}
