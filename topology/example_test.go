package topology_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/topology"
)

// A step says what it takes, and lists what it emits. The document has both.
func Example() {
	type ordered struct {
		Item string `json:"item"`
	}
	type paid struct {
		Cents int64 `json:"cents"`
	}
	charge := consumer.Step{
		Name: "charge",
		Action: consumer.On("order.created", func(_ context.Context, _ pgx.Tx, in consumer.Message[ordered], emit consumer.Emit) error {
			emit.JSON("payment.made", "ship", paid{4200})
			return nil
		}),
		Emits: []outbox.Output{outbox.OutputOf[paid]("payment.made")},
	}
	payment, err := topology.Describe("payment", []consumer.Step{charge}, nil, &topology.Options{Prefix: "shop.", Version: "v1.4.0"})
	if err != nil {
		panic(err)
	}
	document, err := topology.EncodeAsyncAPI([]*topology.Service{payment}, nil)
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(document)) {
		for _, member := range []string{`"address"`, `"summary"`, `"version"`} {
			if strings.Contains(line, member) {
				fmt.Println(strings.Trim(line, " ,\n"))
			}
		}
	}
	// Output:
	// "version": "v1.4.0"
	// "address": "shop.order.created"
	// "address": "shop.payment.made"
	// "summary": "Step charge."
	// "summary": "Sent by step charge."
}
