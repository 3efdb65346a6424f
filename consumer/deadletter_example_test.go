package consumer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
)

// After a fix has been deployed: what would become of the dead letters of a step,
// and then it happens, slowly enough for the system behind it.
func ExampleDeadLetters() {
	redrive := func(ctx context.Context, db *pgxpool.Pool, steps *consumer.Consumer) error {
		letters, err := consumer.NewDeadLetters(db, &consumer.DeadLettersOptions{Schema: "payment_service"})
		if err != nil {
			return err
		}
		filter := consumer.DeadFilter{Step: "process-payment", Newer: 24 * time.Hour}
		plan, err := letters.Plan(ctx, filter, &consumer.PlanOptions{Steps: steps}, func(p consumer.Planned) error {
			fmt.Println(p.ID, p.Scope, p.Key, p.Reason, p.Prospect, p.Why)
			return nil
		})
		if err != nil || plan[consumer.ProspectUndecodable] > 0 {
			return err // edit or discard those first
		}
		done, err := letters.RedriveAll(ctx, filter, &consumer.RedriveOptions{Rate: 50})
		fmt.Println(done.Sent(), "go round again,", done.Removed(), "had nothing left to do,", done.Left(), "stay")
		return err
	}
	_ = redrive
}
