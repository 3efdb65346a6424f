package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// A page says where the saga of an order is waiting, over the schemas of two services.
func ExampleExplain() {
	page := func(ctx context.Context, db *pgxpool.Pool, key string) error {
		sources := []operator.Source{
			{DB: db, Schema: "orders", Name: "orders", Flags: " -schema orders"},
			{DB: db, Schema: "payments", Name: "payments", Flags: " -schema payments"},
		}
		found, err := operator.Explain(ctx, sources, operator.Address{Key: key}, nil)
		if err != nil {
			return err
		}
		for _, finding := range found.Findings {
			fmt.Println(finding.Text)
		}
		return nil
	}
	_ = page
	// Output:
}
