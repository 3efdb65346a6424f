package cookbook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
)

// An Invoice comes from another system, which knows nothing of sagamill. It sends an invoice again when it is in doubt,
// each time as a new message. The number of the invoice stays the same.
type Invoice struct {
	Invoice struct {
		Number string `json:"number"`
		Amount int64  `json:"amount"`
	} `json:"invoice"`
}

// InvoiceIdentity names the messages of that system by the number of their invoice.
var InvoiceIdentity = consumer.Options{Identity: consumer.IdentityFromPayload("billing", "invoice.number")}

// BookInvoice books each invoice once.
var BookInvoice = consumer.Step{Name: "book-invoice", Action: consumer.On("invoice.issued", bookInvoice)}

func bookInvoice(ctx context.Context, tx pgx.Tx, in consumer.Message[Invoice], _ consumer.Emit) error {
	_, err := tx.Exec(ctx, "INSERT INTO shop.booked (number, amount) VALUES ($1, $2)", in.Key, in.Body.Invoice.Amount)
	return err
}
