package outbox_test

import (
	"context"
	"fmt"
	"time"

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

// A page of a back office that shows what operators have done in the last month.
func ExampleReadJournal() {
	page := func(ctx context.Context, db *pgxpool.Pool, before int64) error {
		entries, err := outbox.ReadJournal(ctx, db, "order_service", time.Now().AddDate(0, -1, 0), before, 50)
		for _, e := range entries {
			fmt.Printf("%s %s (%s): %s of %d messages: %s\n", e.At.Format(time.RFC3339), e.By, e.DBUser, e.Verb, len(e.IDs), e.Why)
		}
		return err // the next page is before the last entry's ID
	}
	_ = page
}
