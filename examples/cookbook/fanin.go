package cookbook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
)

// parts is how many messages an order waits for.
const parts = 2

// FanIn are the steps of a service that sends an order on when it is paid and packed. Both messages belong to one saga.
// They arrive in any order, and perhaps at the same time.
var FanIn = []consumer.Step{
	{Name: "note-paid", Action: consumer.On("order.paid", noteArrival("paid"))},
	{Name: "note-packed", Action: consumer.On("order.packed", noteArrival("packed"))},
}

// noteArrival stores that a part has arrived. The handler that stores the last part emits the next message.
func noteArrival(part string) consumer.Handler[Order] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[Order], emit consumer.Emit) error {
		var arrived int
		err := tx.QueryRow(ctx, `
INSERT INTO shop.arrival AS a (saga, parts) VALUES ($1, ARRAY[$2])
ON CONFLICT (saga) DO UPDATE SET parts = a.parts || excluded.parts
RETURNING cardinality(parts)`, in.CorrelationID, part).Scan(&arrived)
		if err != nil {
			return err
		}
		if arrived == parts {
			emit.JSON("order.ready", "ship", in.Body)
		}
		return nil
	}
}
