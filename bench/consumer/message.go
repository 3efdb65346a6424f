package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	payloadSize = 512
	scope       = "bench"
	step        = "reserve-stock"    // the one measured
	followTopic = "stock.reserved"   // what it emits
	followStep  = "arrange-shipping" // the step that receives it
)

// An order is the body of every message. Its id is random, so that keys hit random places of an index: the
// worst case, and the usual one.
type order struct {
	OrderID  string `json:"order_id"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Note     string `json:"note"`
}

func randomOrder() order {
	o := order{OrderID: uuid.NewString(), Item: "sku-4711", Quantity: 2, Amount: 4200, Currency: "EUR"}
	bare, _ := json.Marshal(o) // cannot fail
	o.Note = strings.Repeat("x", payloadSize-len(bare))
	return o
}

// publishing returns an order as the relay would publish it, each in another saga.
func publishing(topic string) (amqp.Publishing, error) {
	o := randomOrder()
	payload, err := json.Marshal(o)
	if err != nil {
		return amqp.Publishing{}, err
	}
	msg := message.NewMessage(uuid.NewString(), payload)
	msg.Metadata = message.Metadata{
		outbox.HeaderKey: o.OrderID + ":" + step, outbox.HeaderScope: scope, outbox.HeaderCausation: uuid.NewString(),
		outbox.PropertyType: topic, outbox.PropertyTimestamp: time.Now().UTC().Format(time.RFC3339Nano),
		outbox.PropertyCorrelation: uuid.NewString(), outbox.PropertyContentType: "application/json",
	}
	return rabbitmq.Marshaler{}.Marshal(msg)
}

// fillQueue puts n messages into q.
func fillQueue(ctx context.Context, q *private.Queue, n int) error {
	return q.FillQueue(ctx, n, func() (amqp.Publishing, error) { return publishing(q.Topic) })
}
