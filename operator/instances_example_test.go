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
		again := operator.Decision{Verb: operator.VerbRetry, By: "ann", Why: "the airline is back"}
		preview, err := instances.PreviewAll(ctx, stuck, again, func(p operator.DecisionPreview) error {
			fmt.Println(p.Address, p.Refusal)
			return nil
		})
		if err != nil || preview.Decided == 0 {
			return err
		}
		made, err := instances.DecideAll(ctx, stuck, again, &operator.DecideOptions{Rate: 100})
		fmt.Println(made.Decided, "retried,", made.TotalRefused(), "refused,", made.Changed, "changed meanwhile")
		return err
	}
}
