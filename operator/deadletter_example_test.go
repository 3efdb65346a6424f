package operator_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
)

// After a fix is deployed: preview a redrive of the dead letters of a step, then redrive them
// at a rate that the system behind the step can take.
func ExampleDeadLetters() {
	redrive := func(ctx context.Context, db *pgxpool.Pool, steps *consumer.Consumer) error {
		letters, err := operator.NewDeadLetters(db, operator.Inbox, &operator.Options{Schema: "payment_service"})
		if err != nil {
			return err
		}
		filter := operator.Filter{Step: "process-payment", Newer: 24 * time.Hour}
		plan, err := letters.Preview(ctx, filter, &operator.PreviewOptions{Consumer: steps}, func(p operator.Preview) error {
			fmt.Println(p.ID, p.Scope, p.Key, p.Reason, p.Outcome, p.Why)
			return nil
		})
		if err != nil || plan[operator.OutcomeUndecodable] > 0 {
			return err // edit or discard those first
		}
		done, err := letters.Redrive(ctx, filter, &operator.RedriveOptions{Rate: 50})
		fmt.Println(done.Sent(), "are retrying,", done.Removed(), "had nothing left to do,", done.Left(), "stay")
		return err
	}
	_ = redrive
}

// A filter of ids picks those and no other. A program that has found none changes none.
func ExampleByID() {
	fmt.Println(operator.ByID(7, 9).IDs, operator.ByID().IDs == nil)
	// Output: [7 9] false
}
