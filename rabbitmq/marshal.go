package rabbitmq

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
)

// maxNesting is how deep a header's tables and arrays are kept.
const maxNesting = 32

// MetadataUserID is the metadata, on arrival, with the user of the broker who sent the message. The broker
// has checked it. Without the property user-id there is none. It is never sent, and a header of that name is
// dropped. See [PublisherOptions].UserID.
const MetadataUserID = "amqp-user-id"

// The metadata that hold, on arrival, further properties of a foreign sender. They are never sent as properties: the
// broker would drop a message whose expiration is over, and refuse one with a reply-to that it does not know.
const (
	propertyReplyTo    = "reply-to"
	propertyAppID      = "app-id"
	propertyExpiration = "expiration"
)

// A Marshaler turns messages into publishings and deliveries into messages. It never returns an
// error: a delivery that fails here would be redelivered again and again. So every delivery
// becomes a message, and the consumer judges it.
//
// The UUID is the message-id. The metadata type, timestamp, correlation-id, content-type and content-encoding are the
// properties of these names. On arrival reply-to, app-id and expiration are, too. All metadata are headers as well, as
// strings, and the UUID is the header that the DefaultMarshaler of watermill-amqp reads. So its subscribers see the UUID
// and all metadata, and messages of its publishers arrive here with theirs. On arrival a property has precedence over the
// header of its name. The timestamp is the exception, because the property holds whole seconds only.
//
// A header that arrives as something else than a string is kept in string form: numbers in decimal,
// bytes as they are, tables and arrays as JSON. The metadata redelivered is never sent, and is "true"
// on arrival if the broker says that it may have delivered the message before.
type Marshaler struct{}

// Marshal returns msg as a persistent publishing. The error is always nil.
func (Marshaler) Marshal(msg *message.Message) (amqp.Publishing, error) {
	p := amqp.Publishing{
		MessageId:       msg.UUID,
		Type:            msg.Metadata[outbox.PropertyType],
		Timestamp:       parseTimestamp(msg.Metadata[outbox.PropertyTimestamp]),
		CorrelationId:   msg.Metadata[outbox.PropertyCorrelation],
		ContentType:     msg.Metadata[outbox.PropertyContentType],
		ContentEncoding: msg.Metadata[outbox.PropertyContentEncoding],
		DeliveryMode:    amqp.Persistent,
		Body:            msg.Payload,
		Headers:         make(amqp.Table, len(msg.Metadata)+1),
	}
	for name, value := range msg.Metadata {
		if name != outbox.PropertyRedelivered && name != MetadataUserID {
			p.Headers[name] = value
		}
	}
	p.Headers[wamqp.DefaultMessageUUIDHeaderKey] = msg.UUID
	return p, nil
}

// Unmarshal returns d as a message. The error is always nil.
func (Marshaler) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	msg := message.NewMessage(d.MessageId, d.Body)
	for name, value := range d.Headers {
		msg.Metadata[name] = textOf(value)
	}
	if msg.UUID == "" {
		msg.UUID = msg.Metadata[wamqp.DefaultMessageUUIDHeaderKey]
	}
	delete(msg.Metadata, wamqp.DefaultMessageUUIDHeaderKey)
	delete(msg.Metadata, MetadataUserID) // a header: anybody can write that
	for name, value := range map[string]string{
		MetadataUserID:                 d.UserId,
		outbox.PropertyType:            d.Type,
		outbox.PropertyCorrelation:     d.CorrelationId,
		outbox.PropertyContentType:     d.ContentType,
		outbox.PropertyContentEncoding: d.ContentEncoding,
		propertyReplyTo:                d.ReplyTo,
		propertyAppID:                  d.AppId,
		propertyExpiration:             d.Expiration,
	} {
		if value != "" {
			msg.Metadata[name] = value
		}
	}
	if msg.Metadata[outbox.PropertyTimestamp] == "" && !d.Timestamp.IsZero() {
		msg.Metadata[outbox.PropertyTimestamp] = formatTimestamp(d.Timestamp)
	}
	delete(msg.Metadata, outbox.PropertyRedelivered) // a foreign one is not the broker's word
	if d.Redelivered {
		msg.Metadata[outbox.PropertyRedelivered] = "true"
	}
	return msg, nil
}

// parseTimestamp returns the zero time for text that is not an RFC 3339 time. It does so too for a time that
// AMQP cannot express, which counts seconds from 1970.
func parseTimestamp(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.Unix() <= 0 {
		return time.Time{}
	}
	return t
}

func formatTimestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Truncate(time.Second).Format(time.RFC3339)
}

// textOf returns the value of a header in string form.
func textOf(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	case bool:
		return strconv.FormatBool(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp.Table, map[string]any, []any:
		encoded, err := json.Marshal(plainValue(v, maxNesting))
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(encoded)
	case amqp.Decimal:
		return decimalText(v)
	}
	return fmt.Sprint(value) // integers and floats of every size
}

// plainValue returns value in terms of what JSON can express, nested at most depth
// deep.
func plainValue(value any, depth int) any {
	if depth == 0 {
		return "…"
	}
	switch v := value.(type) {
	case amqp.Table:
		return plainValue(map[string]any(v), depth)
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, field := range v {
			out[name] = plainValue(field, depth-1)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, element := range v {
			out[i] = plainValue(element, depth-1)
		}
		return out
	case float32:
		return plainValue(float64(v), depth)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return textOf(v)
		}
		return v
	case nil, bool, string, int8, int16, int32, int64, int, uint8, uint16, uint32:
		return v
	}
	return textOf(value)
}

// decimalText writes v.Value / 10^v.Scale.
func decimalText(v amqp.Decimal) string {
	return strconv.FormatInt(int64(v.Value), 10) + "e-" + strconv.Itoa(int(v.Scale))
}
