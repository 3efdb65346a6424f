package rabbitmq

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/guard"
)

const (
	defaultFrameSize = 128 << 10
	frameOverhead    = 8 // type, channel, size and end of a frame

	// maxElements is how many fields amqp091-go reads in one table or array.
	// Over it, as over maxNesting, it closes the connection of the consumer.
	maxElements = 8192
)

// A letter is a message ready to be sent.
type letter struct {
	amqp.Publishing
	route *route
	size  int // an upper bound of the bytes of its header frame
}

// writeLetter makes l of msg. An error means that it must not be sent.
func (p *Publisher) writeLetter(l *letter, msg *message.Message) error {
	if l.route.refused != nil {
		return l.route.refused
	}
	err := guard.Call(func() (err error) {
		l.Publishing, err = p.cfg.Marshaler.Marshal(msg)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: marshal: %w", ErrRejected, err)
	}
	if l.MessageId == "" { // a Marshaler of the user's
		l.MessageId = msg.UUID
	}
	l.UserId = cmp.Or(p.opts.UserID, l.UserId)
	if len(l.Body) > p.opts.MaxPayload {
		return fmt.Errorf("%w: payload of %d bytes, the limit is %d", ErrTooLarge, len(l.Body), p.opts.MaxPayload)
	}
	return l.checkSize()
}

// checkSize measures l's header frame, which AMQP does not split. It returns an error for a message that the
// client cannot encode, that a consumer's client could not read, or that would make the broker close the
// connection.
func (l *letter) checkSize() error {
	const fixed = 64 // class, size, flags, the properties of fixed length, the lengths of the others
	l.size = fixed
	for _, field := range [...]struct{ name, value string }{
		{"exchange", l.route.exchange}, {"routing key", l.route.key}, {"message-id", l.MessageId}, {"type", l.Type},
		{"correlation-id", l.CorrelationId}, {"content-type", l.ContentType}, {"content-encoding", l.ContentEncoding},
		{"reply-to", l.ReplyTo}, {"expiration", l.Expiration}, {"user-id", l.UserId}, {"app-id", l.AppId},
	} {
		// The error names the field, not its value, which can hold anything.
		if len(field.value) > maxShortString {
			return fmt.Errorf("%w: %s of %d bytes, the limit is %d", ErrTooLarge, field.name, len(field.value), maxShortString)
		}
		l.size += len(field.value)
	}
	size, err := tableSize(l.Headers, 0)
	l.size += size
	return err
}

// fieldSize returns the encoded size of a header's value that is inside of depth
// tables and arrays, with its type, or an error.
func fieldSize(value any, depth int) (int, error) {
	switch v := value.(type) {
	case string:
		return 5 + len(v), nil
	case []byte:
		return 5 + len(v), nil
	case amqp.Table:
		return tableSize(v, depth+1)
	case []any:
		return arraySize(v, depth+1)
	case float32:
		return 5, checkFinite(float64(v))
	case float64:
		return 9, checkFinite(v)
	case int:
		if v < math.MinInt32 || v > math.MaxInt32 { // the client would cut it to 32 bits
			return 0, fmt.Errorf("%w: a header of type int with more than 32 bits", ErrRejected)
		}
		return 5, nil
	case nil:
		return 1, nil
	case bool, int8, uint8:
		return 2, nil
	case int16, uint16:
		return 3, nil
	case int32, uint32:
		return 5, nil
	case amqp.Decimal:
		return 6, nil
	case int64, time.Time:
		return 9, nil
	}
	return 0, fmt.Errorf("%w: a header of type %T, which AMQP does not have", ErrRejected, value)
}

// checkFinite refuses what crashes the broker's parser: it closes the connection.
func checkFinite(v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("%w: a header that is not a finite number", ErrRejected)
	}
	return nil
}

func tableSize(table amqp.Table, depth int) (int, error) {
	size, err := containerSize(len(table), depth)
	for name, field := range table {
		if err != nil {
			break
		}
		if len(name) > maxShortString {
			return 0, fmt.Errorf("%w: header name of %d bytes, the limit is %d", ErrTooLarge, len(name), maxShortString)
		}
		var n int
		n, err = fieldSize(field, depth)
		size += 1 + len(name) + n
	}
	return size, err
}

func arraySize(array []any, depth int) (int, error) {
	size, err := containerSize(len(array), depth)
	for _, element := range array {
		if err != nil {
			break
		}
		var n int
		n, err = fieldSize(element, depth)
		size += n
	}
	return size, err
}

func containerSize(elements, depth int) (int, error) {
	switch {
	case elements > maxElements:
		return 0, fmt.Errorf("%w: %d headers in one table or array, the limit is %d", ErrTooLarge, elements, maxElements)
	case depth > maxNesting:
		return 0, fmt.Errorf("%w: headers nested more than %d deep", ErrTooLarge, maxNesting)
	}
	return 5, nil // type and length
}

// frameSize returns the largest frame the broker takes.
func frameSize(c *amqp.Connection) int {
	if size := c.Config.FrameSize; size > 0 {
		return size
	}
	return defaultFrameSize
}
