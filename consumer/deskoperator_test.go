package consumer_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/operator"
)

// Package variables are set before any test runs.
var _ = setDesk()

func setDesk() bool {
	consumer.OpenDesk = func(db *pgxpool.Pool, schema string) (consumer.Desk, error) {
		d, err := operator.NewDeadLetters(db, operator.Inbox, &operator.Options{Schema: schema})
		return desk{d}, err
	}
	return true
}

// A desk is a consumer.Desk made of package operator.
type desk struct{ letters *operator.DeadLetters }

func (d desk) Redrive(ctx context.Context, ids ...int64) (map[string]int, error) {
	done, err := d.letters.Redrive(ctx, operator.Filter{IDs: ids}, nil)
	outcomes := map[string]int{}
	for outcome, n := range done {
		outcomes[string(outcome)] = n
	}
	return outcomes, err
}

func (d desk) Bury(ctx context.Context, ids ...int64) (int, error) {
	return d.letters.Bury(ctx, operator.ByID(ids...))
}

func (d desk) RetryNow(ctx context.Context) (int, error) {
	return d.letters.RetryNow(ctx, operator.Filter{})
}

func (d desk) Edit(ctx context.Context, id int64, e consumer.DeskEdit) error {
	_, _, err := d.letters.Edit(ctx, id, operator.Edit{By: "tester", Payload: e.Payload, Set: e.Set, Remove: e.Remove})
	return err
}

func (d desk) Preview(ctx context.Context, c *consumer.Consumer) (outcomes []string, err error) {
	_, err = d.letters.Preview(ctx, operator.Filter{}, &operator.PreviewOptions{Consumer: c}, func(p operator.Preview) error {
		outcomes = append(outcomes, string(p.Outcome))
		return nil
	})
	return outcomes, err
}
