package evidence

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A poison is a message that no attempt can handle.
type poison struct {
	saga, topic string
	reason      string // of the dead letter
	how         string
	message     amqp.Publishing
	of          stored // the message whose identity it has; zero: none
}

const tooLarge = "too-large"

// poisonScope is a tenant without clients, so that poison cannot touch a saga.
const poisonScope = "chaos"

// oversize is one byte more than a consumer accepts.
const oversize = outbox.MaxPayload + 1

// A recipe spoils a valid message that belongs to no saga.
type recipe struct {
	reason, how string
	spoil       func(p *amqp.Publishing)
}

func withKeyHeader(v any) func(*amqp.Publishing) {
	return func(p *amqp.Publishing) { p.Headers[outbox.HeaderKey] = v }
}

func withScope(v any) func(*amqp.Publishing) {
	return func(p *amqp.Publishing) { p.Headers[outbox.HeaderScope] = v }
}

func withBody(body string) func(*amqp.Publishing) {
	return func(p *amqp.Publishing) { p.Body = []byte(body) }
}

// recipes have the same effect on every topic.
var recipes = []recipe{
	{"key-missing", "none", func(p *amqp.Publishing) { delete(p.Headers, outbox.HeaderKey) }},
	{"key-missing", "empty", withKeyHeader("")},
	{"key-missing", "void", withKeyHeader(nil)},
	{"key-malformed", "integer", withKeyHeader(int32(7))},
	{"key-malformed", "boolean", withKeyHeader(true)},
	{"key-malformed", "bytes", withKeyHeader([]byte{0xff, 0x00, 0xfe})},
	{"key-malformed", "array", withKeyHeader([]any{"a", int32(1)})},
	{"key-malformed", "table", withKeyHeader(amqp.Table{"a": "b:c"})},
	{"key-malformed", "float", withKeyHeader(1.5)},
	{"key-malformed", "no step", withKeyHeader("chaos")},
	{"key-malformed", "two colons at the end", withKeyHeader("chaos::")},
	{"key-malformed", "300 bytes", withKeyHeader(strings.Repeat("k", 300) + ":process-payment")},
	{"key-malformed", "NUL", withKeyHeader("chaos\x00:process-payment")},
	{"key-malformed", "line break", withKeyHeader("chaos\r\nX-Admin: yes:process-payment")},
	{"key-malformed", "terminal escape", withKeyHeader("\x1b[2Jchaos:process-payment")},
	{"key-malformed", "not ASCII", withKeyHeader("schlüssel:process-payment")},
	{"scope-missing", "none", func(p *amqp.Publishing) { delete(p.Headers, outbox.HeaderScope) }},
	{"scope-malformed", "300 bytes", withScope(strings.Repeat("s", 300))},
	{"scope-malformed", "line break", withScope("tenant-0\nadmin")},
	{"type-missing", "none", func(p *amqp.Publishing) { p.Type = "" }},
	{"type-unknown", "nobody's", func(p *amqp.Publishing) { p.Type = "nobody.knows" }},
	{"type-unknown", "a step of another service", func(p *amqp.Publishing) {
		other := "mail.send"
		if p.Type == other {
			other = "order.created"
		}
		p.Type = other
	}},
	{"undecodable", "content type", func(p *amqp.Publishing) { p.ContentType = "text/plain" }},
	{"undecodable", "empty body", withBody("")},
	{"undecodable", "cut off", withBody(`{"order_id":"`)},
	{"undecodable", "two values", withBody(`{}{}`)},
	{"undecodable", "depth", withBody(strings.Repeat("[", 20_000))},
	{"undecodable", "a member twice", withBody(`{"outcome":"done","outcome":"failed","amount":1,"amount":999}`)},
	{"undecodable", "case twins", withBody(`{"amount":1,"AMOUNT":999}`)},
	{"undecodable", "not UTF-8 or JSON", withBody("\xff\xfe\x00")},
	{"undecodable", "a key that looks like SQL", func(p *amqp.Publishing) {
		p.Headers[outbox.HeaderKey] = `'; DROP TABLE orders; --:process-payment`
		p.Body = []byte(`{"amount":1e400000`)
	}},
	{tooLarge, "payload", func(p *amqp.Publishing) { p.Body = bytes.Repeat([]byte{' '}, oversize) }},
}

// brewPoison returns a poison that is not made from a stored message.
func brewPoison(r *rand.Rand, large bool) poison {
	if r.IntN(8) == 0 {
		return strayPoison(r)
	}
	l := Listeners[r.IntN(len(Listeners))]
	c := recipes[r.IntN(len(recipes))]
	for c.reason == tooLarge && !large {
		c = recipes[r.IntN(len(recipes))]
	}
	return c.makePoison(r, l)
}

// makePoison returns a spoilt message for l.
func (c recipe) makePoison(r *rand.Rand, l Listener) poison {
	p := poison{saga: l.Saga, topic: l.Topic, reason: c.reason, how: c.how, message: innocent(r, l.Type)}
	c.spoil(&p.message)
	return p
}

// strayPoison returns a valid message about a saga that does not exist, of a type that has no effect on one.
func strayPoison(r *rand.Rand) poison {
	order := []string{"payment.declined", "payment.refunded", "shipment.arranged"}
	if i := r.IntN(len(order) + 1); i < len(order) {
		p := poison{saga: record.Order, topic: order[i], reason: "terminal", how: "unknown saga", message: innocent(r, order[i])}
		p.message.Body = fmt.Appendf(nil, `{"order_id":%q,"reason":"chaos","attempts":1}`, randomUUID(r))
		return p
	}
	p := poison{saga: record.Trip, topic: "saga.trip", reason: "terminal", how: "unknown saga", message: innocent(r, "saga.reply")}
	p.message.Headers[outbox.HeaderKey] = fmt.Sprintf("chaos:%x:flight#%08x-3.1.d", r.Uint64(), r.Uint32())
	return p
}

// innocent returns a message that a service would handle.
func innocent(r *rand.Rand, typ string) amqp.Publishing {
	return amqp.Publishing{
		MessageId: randomUUID(r).String(), CorrelationId: randomUUID(r).String(), Type: typ, Timestamp: time.Now(),
		ContentType: "application/json", DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{outbox.HeaderKey: fmt.Sprintf("chaos:%x:step", r.Uint64()), outbox.HeaderScope: poisonScope},
		Body:    []byte(`{"outcome":"done"}`),
	}
}

// randomUUID returns a UUID drawn from the seed.
func randomUUID(r *rand.Rand) (id uuid.UUID) {
	for i := range id {
		id[i] = byte(r.Uint32())
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

// forgePoison returns a copy of m, under its identity, with an additional space in the payload. Its meaning is
// the same, but its digest is not.
func forgePoison(r *rand.Rand, saga string, m stored) (poison, error) {
	publication, err := m.publication()
	if err != nil {
		return poison{}, err
	}
	p := poison{saga: saga, topic: m.Topic, reason: "key-reused", how: "another payload", of: m}
	p.message, err = rabbitmq.Marshaler{}.Marshal(publication.Message)
	p.message.MessageId = randomUUID(r).String()
	p.message.Body = append(bytes.Clone(m.Payload), ' ')
	return p, err
}
