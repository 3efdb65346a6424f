package rabbitmq

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
)

const (
	defaultFrameSize = 128 << 10
	frameOverhead    = 8 // type, channel, size and end of a frame
)

// A letter is a message ready to be sent.
type letter struct {
	amqp.Publishing
	exchange, key string
}

// A batch is what one call publishes, and what became of it so far.
type batch struct {
	letters  []letter
	results  []error
	resolved []bool
	first    int // all before it are resolved
}

// pack makes a batch. Messages that cannot be sent are refused in it.
func (p *Publisher) pack(publications []outbox.Publication) *batch {
	n := len(publications)
	b := &batch{letters: make([]letter, n), results: make([]error, n), resolved: make([]bool, n)}
	for i, publication := range publications {
		l, err := p.letter(publication)
		if err != nil {
			b.resolve(i, err)
		}
		b.letters[i] = l
	}
	return b
}

func (p *Publisher) letter(publication outbox.Publication) (letter, error) {
	l := letter{exchange: p.cfg.Exchange.GenerateName(publication.Topic)}
	if p.cfg.Publish.GenerateRoutingKey != nil {
		l.key = p.cfg.Publish.GenerateRoutingKey(publication.Topic)
	}
	var err error
	if l.Publishing, err = p.cfg.Marshaler.Marshal(publication.Message); err != nil {
		return l, fmt.Errorf("%w: marshal: %w", ErrRejected, err)
	}
	if l.MessageId == "" { // a Marshaler of the user's
		l.MessageId = publication.Message.UUID
	}
	if err := l.Headers.Validate(); err != nil {
		return l, fmt.Errorf("%w: headers: %w", ErrRejected, err)
	}
	if len(l.Body) > p.opts.MaxPayload {
		return l, fmt.Errorf("%w: payload of %d bytes, the limit is %d", ErrTooLarge, len(l.Body), p.opts.MaxPayload)
	}
	return l, checkShortStrings(&l)
}

// checkShortStrings names the field, not its value, which can hold anything.
func checkShortStrings(l *letter) error {
	for _, field := range []struct{ name, value string }{
		{"exchange", l.exchange}, {"routing key", l.key}, {"message-id", l.MessageId}, {"type", l.Type},
		{"correlation-id", l.CorrelationId}, {"content-type", l.ContentType}, {"content-encoding", l.ContentEncoding},
		{"reply-to", l.ReplyTo}, {"expiration", l.Expiration}, {"user-id", l.UserId}, {"app-id", l.AppId},
	} {
		if len(field.value) > maxShortString {
			return fmt.Errorf("%w: %s of %d bytes, the limit is %d", ErrTooLarge, field.name, len(field.value), maxShortString)
		}
	}
	for name := range l.Headers {
		if len(name) > maxShortString {
			return fmt.Errorf("%w: header name of %d bytes, the limit is %d", ErrTooLarge, len(name), maxShortString)
		}
	}
	return nil
}

// next returns the index of the first unresolved message, or -1.
func (b *batch) next() int {
	for b.first < len(b.resolved) && b.resolved[b.first] {
		b.first++
	}
	return b.after(b.first - 1)
}

// after returns the index of the first unresolved message after i, or -1.
func (b *batch) after(i int) int {
	for i++; i < len(b.resolved); i++ {
		if !b.resolved[i] {
			return i
		}
	}
	return -1
}

func (b *batch) resolve(i int, err error) { b.results[i], b.resolved[i] = err, true }

// refuse resolves every open message to exchange.
func (b *batch) refuse(exchange string, err error) {
	for i := b.next(); i >= 0; i = b.after(i) {
		if b.letters[i].exchange == exchange {
			b.resolve(i, err)
		}
	}
}

// fail resolves what is left with err and returns the results.
func (b *batch) fail(err error) []error {
	for i := b.next(); i >= 0; i = b.after(i) {
		b.resolve(i, err)
	}
	return b.results
}

// frameSize returns the largest frame the broker takes.
func frameSize(c *amqp.Connection) int {
	if size := c.Config.FrameSize; size > 0 {
		return size
	}
	return defaultFrameSize
}

// headerSize returns an upper bound of the bytes of p's header frame, which
// AMQP does not split.
func headerSize(p *amqp.Publishing) int {
	const fixed = 64 // class, size, flags, and the properties of fixed length
	size := fixed + len(p.MessageId) + len(p.Type) + len(p.CorrelationId) + len(p.ContentType) + len(p.ContentEncoding) +
		len(p.ReplyTo) + len(p.Expiration) + len(p.UserId) + len(p.AppId)
	return size + fieldSize(p.Headers)
}

// fieldSize returns an upper bound of the encoded size of a header's value.
func fieldSize(value any) int {
	const scalar = 16 // type and the longest of the values of fixed length, or the length of the others
	size := scalar
	switch v := value.(type) {
	case string:
		size += len(v)
	case []byte:
		size += len(v)
	case amqp.Table:
		for name, field := range v {
			size += 1 + len(name) + fieldSize(field)
		}
	case []any:
		for _, element := range v {
			size += fieldSize(element)
		}
	}
	return size
}
