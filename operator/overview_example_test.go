package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// Print the problems of all schemas of a database.
func ExampleReadOverview() {
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		all, err := operator.ReadOverview(ctx, db, nil)
		if err != nil {
			return err
		}
		for _, s := range all {
			for _, problem := range s.Problems() {
				fmt.Println(s.Schema, problem.Kind, problem.Count, problem.Oldest)
			}
		}
		return nil
	}
}
