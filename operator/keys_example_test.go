package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// The provider says which of the charges whose outcome is unknown it has made: those are answered, the others run again.
func ExampleKeys() {
	_ = func(ctx context.Context, db *pgxpool.Pool, charged func(key string) bool) error {
		keys, err := operator.NewKeys(db, &operator.Options{Schema: "payment_service", By: "ann", Why: "read from the provider's list of charges"})
		if err != nil {
			return err
		}
		unknown, err := keys.List(ctx, operator.KeyFilter{}, operator.KeyRecord{}, operator.MaxList)
		if err != nil {
			return err
		}
		for _, k := range unknown {
			if charged(k.Key) {
				err = keys.Complete(ctx, k, operator.KeyAnswer{Status: 201, ContentType: "application/json", Body: []byte(`{"charged":true}`)}, 0)
			} else {
				err = keys.Release(ctx, k, 0)
			}
			fmt.Println(k.Digest, err) // operator.ErrKeyDecided: a retry, or another person, was faster
		}
		return nil
	}
}
