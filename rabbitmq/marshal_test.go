package rabbitmq_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// deliver returns the message that arrives when p was published.
func deliver(p amqp.Publishing, redelivered bool) *message.Message {
	msg, _ := rabbitmq.Marshaler{}.Unmarshal(amqp.Delivery{
		MessageId: p.MessageId, Type: p.Type, Timestamp: p.Timestamp, CorrelationId: p.CorrelationId,
		ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, ReplyTo: p.ReplyTo, AppId: p.AppId, Expiration: p.Expiration, Headers: p.Headers, Body: p.Body, Redelivered: redelivered,
	})
	return msg
}

func TestMarshalRoundTrip(t *testing.T) {
	t.Parallel()
	for _, timestamp := range []string{"2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678+01:00", "1960-01-01T00:00:00Z", "yesterday"} {
		want := message.NewMessage("id", message.Payload("body"))
		want.Metadata = message.Metadata{
			outbox.PropertyType: "t", outbox.PropertyCorrelation: "c", outbox.PropertyContentType: "text/plain",
			outbox.PropertyTimestamp: timestamp, outbox.HeaderKey: "k:s", "empty": "",
			outbox.PropertyContentEncoding: "gzip", "reply-to": "q", "app-id": "shop", "expiration": "1000",
		}
		p, err := rabbitmq.Marshaler{}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if p.MessageId != "id" || p.Type != "t" || p.CorrelationId != "c" || p.ContentType != "text/plain" || p.DeliveryMode != amqp.Persistent ||
			p.ContentEncoding != "gzip" || p.ReplyTo != "" || p.AppId != "" || p.Expiration != "" {
			t.Errorf("properties are %+v", p)
		}
		got := deliver(p, false)
		if got.UUID != "id" || string(got.Payload) != "body" {
			t.Errorf("message %s with %q came back", got.UUID, got.Payload)
		}
		if diff := cmp.Diff(want.Metadata, got.Metadata); diff != "" {
			t.Errorf("metadata (-want +got):\n%s", diff)
		}
	}
}

// A foreign sender may set properties that this package does not.
func TestUnmarshalForeignProperties(t *testing.T) {
	t.Parallel()
	got := deliver(amqp.Publishing{ContentEncoding: "gzip", ReplyTo: "q", AppId: "shop", Expiration: "1000"}, false)
	want := message.Metadata{outbox.PropertyContentEncoding: "gzip", "reply-to": "q", "app-id": "shop", "expiration": "1000"}
	if diff := cmp.Diff(want, got.Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
}

func TestMarshalTimestampIsProperty(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("id", nil)
	msg.Metadata[outbox.PropertyTimestamp] = "2026-01-02T03:04:05Z"
	p, _ := rabbitmq.Marshaler{}.Marshal(msg)
	if want := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC); !p.Timestamp.Equal(want) {
		t.Errorf("timestamp %s, want %s", p.Timestamp, want)
	}
}

func TestUnmarshalHeaders(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value any
		want  string
	}{
		{nil, ""},
		{"text", "text"},
		{[]byte{0xff, 'a'}, "\xffa"},
		{true, "true"},
		{int8(-1), "-1"},
		{int64(math.MinInt64), "-9223372036854775808"},
		{uint32(7), "7"},
		{1.5, "1.5"},
		{math.NaN(), "NaN"},
		{time.Unix(0, 0), "1970-01-01T00:00:00Z"},
		{amqp.Decimal{Scale: 2, Value: 150}, "150e-2"},
		{amqp.Table{"a": int32(1), "b": []byte("x")}, `{"a":1,"b":"x"}`},
		{[]any{amqp.Table{"count": int64(2)}, nil, math.Inf(1)}, `[{"count":2},null,"+Inf"]`},
	}
	for _, tt := range tests {
		if got := deliver(amqp.Publishing{Headers: amqp.Table{"h": tt.value}}, false).Metadata["h"]; got != tt.want {
			t.Errorf("header %#v = %q, want %q", tt.value, got, tt.want)
		}
	}
}

func TestUnmarshalRedelivered(t *testing.T) {
	t.Parallel()
	forged := amqp.Publishing{Headers: amqp.Table{outbox.PropertyRedelivered: "true"}}
	if got, ok := deliver(forged, false).Metadata[outbox.PropertyRedelivered]; ok {
		t.Errorf("redelivered = %q from a header, want none", got)
	}
	if got := deliver(amqp.Publishing{}, true).Metadata[outbox.PropertyRedelivered]; got != "true" {
		t.Errorf("redelivered = %q, want true", got)
	}
	msg := message.NewMessage("id", nil)
	msg.Metadata[outbox.PropertyRedelivered] = "true"
	if p, _ := (rabbitmq.Marshaler{}).Marshal(msg); p.Headers[outbox.PropertyRedelivered] != nil {
		t.Errorf("headers %v are sent, want none of the redelivery", p.Headers)
	}
}

func TestUnmarshalUUID(t *testing.T) {
	t.Parallel()
	header := amqp.Table{"_watermill_message_uuid": "from-header"}
	if msg := deliver(amqp.Publishing{Headers: header}, false); msg.UUID != "from-header" || len(msg.Metadata) != 0 {
		t.Errorf("UUID %q, metadata %v; want the header's, and none", msg.UUID, msg.Metadata)
	}
	if msg := deliver(amqp.Publishing{MessageId: "id", Headers: header}, false); msg.UUID != "id" || len(msg.Metadata) != 0 {
		t.Errorf("UUID %q, metadata %v; want the message-id, and none", msg.UUID, msg.Metadata)
	}
}

// A fleet on watermill-amqp and one on this package understand each other: ids, properties and payloads arrive on
// either side as they were sent.
func TestWatermillsMarshalerUnderstandsOurs(t *testing.T) {
	t.Parallel()
	ours, stock := rabbitmq.Marshaler{}, wamqp.DefaultMarshaler{}
	sent := message.NewMessage("id", message.Payload("body"))
	sent.Metadata = message.Metadata{
		outbox.PropertyType: "t", outbox.PropertyCorrelation: "c", outbox.PropertyContentType: "text/plain",
		outbox.PropertyTimestamp: "2026-01-02T03:04:05.678Z", outbox.HeaderKey: "k:s", outbox.HeaderScope: "tenant",
	}
	for name, pair := range map[string][2]interface {
		Marshal(*message.Message) (amqp.Publishing, error)
		Unmarshal(amqp.Delivery) (*message.Message, error)
	}{"from here": {ours, stock}, "from watermill": {stock, ours}} {
		p, err := pair[0].Marshal(sent)
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := pair[1].Unmarshal(amqp.Delivery{
			MessageId: p.MessageId, Type: p.Type, Timestamp: p.Timestamp, CorrelationId: p.CorrelationId,
			ContentType: p.ContentType, Headers: p.Headers, Body: p.Body,
		})
		if err != nil {
			t.Fatal(name, err)
		}
		if !got.Equals(sent) {
			t.Errorf("%s: %s with %v and %q arrived, want %s with %v and %q", name, got.UUID, got.Metadata, got.Payload, sent.UUID, sent.Metadata, sent.Payload)
		}
	}
}

// Any table of headers gives a message, with a metadata for each header.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte("a\x01b\x02c\x03d\x04e\x05f\x06g\x07h\x08i\x09"), "id", "type", int64(5))
	f.Add([]byte(strings.Repeat("\x09", 200)), "", "", int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, data []byte, id, kind string, timestamp int64) {
		table := tableFrom(bytes.NewReader(data), 100)
		msg := deliver(amqp.Publishing{MessageId: id, Type: kind, Timestamp: time.Unix(timestamp, 0), Headers: table}, true)
		if msg == nil || msg.Metadata[outbox.PropertyRedelivered] != "true" {
			t.Fatalf("message %v", msg)
		}
		for name := range table {
			if _, ok := msg.Metadata[name]; !ok && name != outbox.PropertyRedelivered && name != "_watermill_message_uuid" {
				t.Errorf("header %q is lost", name)
			}
		}
	})
}

// tableFrom makes a table of data: of each pair of bytes the first is the name
// of a field and the second its type.
func tableFrom(data *bytes.Reader, depth int) amqp.Table {
	table := amqp.Table{}
	for data.Len() > 1 && depth > 0 {
		name, _ := data.ReadByte()
		kind, _ := data.ReadByte()
		var value [8]byte
		_, _ = data.Read(value[:kind%9])
		number := binary.LittleEndian.Uint64(value[:])
		table[string(rune(name))] = []any{
			nil, kind%2 == 0, int64(number), math.Float64frombits(number), value[:], string(value[:]),
			time.Unix(int64(number), 0), amqp.Decimal{Scale: kind, Value: int32(number)}, float32(number),
		}[kind%9]
		if kind > 200 {
			table["nested"] = []any{tableFrom(data, depth-1), tableFrom(data, depth-1)}
		}
	}
	return table
}
