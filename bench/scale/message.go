package main

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	payloadSize = 512
	scope       = "bench"
)

// stepNames are the three steps of a saga; a consumer alone executes the first.
var stepNames = []string{"process-payment", "arrange-shipping", "complete-order"}

// An order is the subject of a saga and the body of each of its messages. Its id is random, so that keys hit
// random places of an index: the worst case, and the usual one.
type order struct {
	OrderID  string `json:"order_id"`
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
	Amount   int64  `json:"amount"`
	Note     string `json:"note"`
}

func randomOrder() *order {
	o := &order{OrderID: uuid.NewString(), Item: "sku-4711", Quantity: 2, Amount: 4200}
	o.Note = strings.Repeat("x", payloadSize-len(o.payload()))
	return o
}

func (o *order) payload() []byte {
	text, _ := json.Marshal(o) // cannot fail
	return text
}

// columnValues are the arguments of an insert.
func (o *order) columnValues() []any { return []any{o.OrderID, o.Item, o.Quantity, o.Amount} }

// outboxMessage returns the message that starts a step of the order's saga.
func (o *order) outboxMessage(topic, step string) outbox.Message {
	return outbox.Message{Topic: topic, Scope: scope, Key: o.OrderID, Step: step, Payload: o.payload()}
}

// publishing returns such a message as a relay would publish it.
func publishing(topic string) (amqp.Publishing, error) {
	o := randomOrder()
	msg := message.NewMessage(uuid.NewString(), o.payload())
	msg.Metadata = message.Metadata{
		outbox.HeaderKey: o.OrderID + ":" + stepNames[0], outbox.HeaderScope: scope, outbox.HeaderCausation: uuid.NewString(),
		outbox.PropertyType: topic, outbox.PropertyTimestamp: time.Now().UTC().Format(time.RFC3339Nano),
		outbox.PropertyCorrelation: uuid.NewString(), outbox.PropertyContentType: "application/json",
	}
	return rabbitmq.Marshaler{}.Marshal(msg)
}
