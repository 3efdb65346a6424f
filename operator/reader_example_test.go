package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// What a schema knows of an id, and what its ordering keys wait for.
func ExampleReader() {
	_ = func(ctx context.Context, db *pgxpool.Pool, id string) error {
		r, err := operator.NewReader(db, &operator.Options{Schema: "order_service"})
		if err != nil {
			return err
		}
		found, err := r.Search(ctx, id)
		if err != nil {
			return err
		}
		for _, m := range found.Matches {
			fmt.Println(m.Kind, m.Name, "of", m.Scope, m.Key)
		}
		keys, err := r.ListWaitingKeys(ctx, "", operator.MaxList)
		for _, k := range keys {
			fmt.Println(k.OrderingKey, "waits for message", k.First.ID, k.First.Reason)
		}
		return err
	}
}
