package operator_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// Once the missing queue exists, redrive the messages that the broker could not route.
func ExampleDeadLetters_outbox() {
	redrive := func(ctx context.Context, db *pgxpool.Pool) error {
		letters, err := operator.NewDeadLetters(db, operator.Outbox, &operator.Options{Schema: "order_service", By: "ann", Why: "the queue is there now"})
		if err != nil {
			return err
		}
		filter := operator.Filter{Topic: "orders", Error: "no queue"}
		some, err := letters.List(ctx, filter, 0, 10)
		if err != nil {
			return err
		}
		for _, l := range some {
			fmt.Println(l.ID, l.Scope, l.Key, l.Step, l.Attempts, l.LastAt)
		}
		done, err := letters.Redrive(ctx, filter, &operator.RedriveOptions{Rate: 50})
		fmt.Println(done.Sent(), "are published again")
		return err
	}
	_ = redrive
}

// A page of a console with the changes of operators in the last month.
func ExampleReadJournal() {
	page := func(ctx context.Context, db *pgxpool.Pool, before int64) error {
		entries, err := operator.ReadJournal(ctx, db, &operator.Options{Schema: "order_service"}, time.Now().AddDate(0, -1, 0), before, 50)
		for _, e := range entries {
			fmt.Printf("%s %s (%s): %s of %d messages: %s\n", e.At.Format(time.RFC3339), e.By, e.DBUser, e.Verb, len(e.IDs), e.Why)
		}
		return err // the next page is before the last entry's ID
	}
	_ = page
}

// After the queue of a consumer was lost: publish the messages of a saga again. The log must
// still hold them: see outbox.RelayOptions.Retention.
func ExampleReplayer() {
	replay := func(ctx context.Context, db *pgxpool.Pool, key string) error {
		replayer, err := operator.NewReplayer(db, &operator.Options{Schema: "shop"})
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			sent, err := replayer.Replay(ctx, tx, operator.ReplayFilter{Scope: "acme", Key: key})
			fmt.Println(len(sent), "messages are published again once this commits")
			return err
		})
	}
	_ = replay
}
