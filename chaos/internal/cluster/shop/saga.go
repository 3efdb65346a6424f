package shop

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/outbox"
)

// The topics, without the prefix of a shop.
const (
	created = "order.created"
	paid    = "order.paid"
	shipped = "order.shipped"
	Red     = "red"
	Blue    = "blue"
)

// Topics are those that a shop publishes and listens to.
var Topics = []string{created, paid, shipped, Red, Blue}

// The scopes of sagas.
const (
	ScopeOrder = "order"
	ScopeRed   = "red"
	ScopeBlue  = "blue"
)

// A stage is one step of a saga, with the topic of its message, the topic that follows, and the next step.
type stage struct{ step, topic, next, nextStep string }

// last is the step that completes an order.
const last = "notification"

var stages = []stage{
	{"payment", created, paid, "shipping"},
	{"shipping", paid, shipped, last},
	{last, shipped, "", ""},
	{ScopeRed, Red, "", ""},
	{ScopeBlue, Blue, "", ""},
}

// StepsByService returns the steps of each scope: each saga has one effect of each of them.
func StepsByService() map[string][]string {
	return map[string][]string{ScopeOrder: {"payment", "shipping", last}, ScopeRed: {ScopeRed}, ScopeBlue: {ScopeBlue}}
}

// A note is the payload of all messages of a saga.
type note struct {
	Scope  string `json:"scope"`
	Key    int    `json:"key"`
	Seq    int    `json:"seq"`
	Amount int64  `json:"amount"`
	At     int64  `json:"at"` // when it was written, in nanoseconds since 1970
}

// headerKey is the ordering key of a message. The broker carries no other trace of it.
const headerKey = "chaos-key"

// outboxMessage returns the message of a saga to one step.
func (n *note) outboxMessage(topic, step string, payload []byte) outbox.Message {
	m := outbox.Message{Topic: topic, Scope: n.Scope, Key: fmt.Sprintf("%d-%d", n.Key, n.Seq), Step: step, Payload: payload}
	if n.Scope == ScopeOrder {
		m.OrderingKey = n.Scope + "-" + strconv.Itoa(n.Key)
		m.Headers = map[string]string{headerKey: m.OrderingKey}
	}
	return m
}

// orderingKey is that of a received message; "" for red and blue, which have no order.
func orderingKey(m *message.Message) string { return m.Metadata.Get(headerKey) }

// consumerSteps returns the consumer's steps.
func consumerSteps(schema string) []consumer.Step {
	all := make([]consumer.Step, 0, len(stages))
	for _, st := range stages {
		all = append(all, consumer.Step{Name: st.step, Action: consumer.On(st.topic, stageHandler(st, sqlschema.Bind(schema, sqlInsertEffect)))})
	}
	return all
}

// stageHandler adds the effect of a step, and emits the message to the next one.
func stageHandler(st stage, insert string) consumer.Handler[note] {
	return func(_ context.Context, _ pgx.Tx, in consumer.Message[note], emit consumer.Emit) error {
		in.Queue(insert, st.step, in.Body.Scope, in.Body.Key, in.Body.Seq, in.Body.Amount)
		if st.next != "" {
			emit(in.Body.outboxMessage(st.next, st.nextStep, in.Payload))
		}
		return nil
	}
}

// An observer reports what the consumer does to the meter.
type observer struct{ *Shop }

func (observer) Enter(context.Context, *consumer.Delivery) consumer.Entry { return nil }
func (observer) Ended(context.Context, consumer.Transaction)              {}

func (o observer) Observe(_ context.Context, e consumer.Event) {
	now := time.Now()
	if e.Redelivered {
		o.opts.Meter.Redeliver(now)
	}
	if e.Outcome != consumer.OutcomeDone {
		return
	}
	switch e.Delivery.Step {
	case last:
		o.opts.Meter.Complete(now)
	case ScopeRed:
		o.opts.Meter.HandleRed()
	case ScopeBlue:
		var n note
		if json.Unmarshal(e.Delivery.Payload, &n) == nil {
			o.opts.Meter.HandleBlue(time.Unix(0, n.At), now)
		}
	}
}
