package cookbook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/cookbook/shopdb"
)

// Reserve takes an item from stock by a query of sqlc.
var Reserve = consumer.Step{Name: "reserve-item", Action: consumer.On("order.created", reserve)}

// reserve gives the step's transaction to the queries, so that they commit with the inbox and with the message.
func reserve(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], emit consumer.Emit) error {
	queries := shopdb.New(tx)
	taken, err := queries.TakeFromStock(ctx, shopdb.TakeFromStockParams{Item: in.Body.Item, Free: 1})
	if err != nil {
		return err
	}
	if taken == 0 {
		emit.JSON("stock.missing", "cancel-order", in.Body)
		return nil
	}
	emit.JSON("stock.reserved", "ship", in.Body)
	return nil
}
