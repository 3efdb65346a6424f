package operator_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/operator"
)

// Where a saga is in two services of one database, at one moment.
func ExampleLocator() {
	schemas := []string{"order_service", "payment_service"} // or those of migrations.Schemas
	oneMoment := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	where := func(ctx context.Context, tx pgx.Tx, schema string) error {
		l, err := operator.NewLocator(&operator.Options{Schema: schema})
		if err != nil {
			return err
		}
		out, err := l.Outbox(ctx, tx, operator.LocateFilter{Key: "order-42"})
		if err != nil {
			return err
		}
		in, err := l.Inbox(ctx, tx, operator.LocateFilter{Key: "order-42"})
		fmt.Println(schema, out.Messages, in.Steps, in.Letters)
		return err
	}
	_ = func(ctx context.Context, db *pgxpool.Pool) error {
		return pgx.BeginTxFunc(ctx, db, oneMoment, func(tx pgx.Tx) error {
			for _, schema := range schemas { // before anything is read
				l, err := operator.NewLocator(&operator.Options{Schema: schema})
				if err != nil {
					return err
				}
				if err := l.Pin(ctx, tx); err != nil {
					return err
				}
			}
			for _, schema := range schemas {
				if err := where(ctx, tx, schema); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
