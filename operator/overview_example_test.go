package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// Tell what needs a person, in all schemas of a database.
func ExampleReadOverview() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		all, err := operator.ReadOverview(ctx, db)
		if err != nil {
			return err
		}
		for _, s := range all {
			for _, need := range s.Needs() {
				fmt.Println(s.Schema, need.Kind, need.Count, need.Oldest)
			}
		}
		return nil
	}
}
