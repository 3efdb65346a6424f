package outbox_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/outbox"
)

// Once the missing queue is there, what the broker could not route goes round again.
func ExampleDeadLetters() {
	redrive := func(ctx context.Context, db *pgxpool.Pool) error {
		letters, err := outbox.NewDeadLetters(db, "order_service")
		if err != nil {
			return err
		}
		filter := outbox.DeadFilter{Topic: "orders", Reason: "no queue"}
		some, err := letters.List(ctx, filter, 0, 10)
		if err != nil {
			return err
		}
		for _, l := range some {
			fmt.Println(l.ID, l.Scope, l.Key, l.Step, l.Attempts, l.RefusedAt)
		}
		mended := outbox.Operator{By: "ann", Why: "the queue is there now"}
		n, err := letters.As(mended).RedriveAll(ctx, filter, &outbox.RedriveOptions{Rate: 50})
		fmt.Println(n, "go round again")
		return err
	}
	_ = redrive
}
