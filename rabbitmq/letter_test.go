package rabbitmq_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// An editor is a Marshaler of a user's: it can set all that AMQP has, and more.
type editor struct {
	rabbitmq.Marshaler
	edits map[string]func(*amqp.Publishing) // by UUID
}

func (e editor) Marshal(msg *message.Message) (amqp.Publishing, error) {
	p, err := e.Marshaler.Marshal(msg)
	if edit := e.edits[msg.UUID]; edit != nil {
		edit(&p)
	}
	return p, err
}

// An edit is a message made by a user's Marshaler, and what is to become of it.
type edit struct {
	name string
	edit func(*amqp.Publishing)
	want error
}

func header(value any) func(*amqp.Publishing) {
	return func(p *amqp.Publishing) { p.Headers["x-header"] = value }
}

// arrays returns n arrays in each other, and tables as many tables.
func arrays(n int) any {
	var v any = "x"
	for range n {
		v = []any{v}
	}
	return v
}

func tables(n int) any {
	var v any = "x"
	for range n {
		v = amqp.Table{"x": v}
	}
	return v
}

// publishEdited publishes a message for each edit, with innocent ones around
// them, and checks all results.
func publishEdited(t *testing.T, edits []edit) (*rabbitmq.Publisher, *rabbittest.Proxy) {
	t.Helper()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	cfg := through(declared(t, "orders"), proxy.URL())
	marshaler := editor{edits: make(map[string]func(*amqp.Publishing))}
	cfg.Marshaler = marshaler
	pub := newPublisher(t, cfg, nil)
	rabbitmq.Opened(pub).Enable()
	batch := batchOf("orders", 2*len(edits)+1)
	for i, e := range edits {
		marshaler.edits[batch[2*i+1].Message.UUID] = e.edit
	}
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		name, want := "innocent", error(nil)
		if i%2 == 1 {
			name, want = edits[i/2].name, edits[i/2].want
		}
		if !errors.Is(err, want) || want != nil && !errors.Is(err, outbox.ErrRefused) {
			t.Errorf("%s = %v, want %v", name, err, want)
		}
	}
	return pub, proxy
}

// A message is not sent if the client cannot encode it, the broker would close the connection, or a
// consumer's client could not read it. One connection and one channel carry the others.
func TestPublishImpossibleHeaders(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	pub, proxy := publishEdited(t, []edit{
		{"no AMQP type", header(uint64(1)), rabbitmq.ErrRejected},
		{"no AMQP type in an array", header([]any{struct{}{}}), rabbitmq.ErrRejected},
		{"a map that is no table", header(map[string]any{}), rabbitmq.ErrRejected},
		{"int of more than 32 bits", header(math.MaxInt32 + 1), rabbitmq.ErrRejected},
		{"not a number", header(math.NaN()), rabbitmq.ErrRejected},
		{"infinite in a table", header(amqp.Table{"x": float32(math.Inf(-1))}), rabbitmq.ErrRejected},
		{"long name in a table", header(amqp.Table{long: "x"}), rabbitmq.ErrTooLarge},
		{"long name in a table in an array", header([]any{amqp.Table{long: "x"}}), rabbitmq.ErrTooLarge},
		{"33 arrays in each other", header(arrays(33)), rabbitmq.ErrTooLarge},
		{"33 tables in each other", header(tables(33)), rabbitmq.ErrTooLarge},
		{"array of 8,193", header(make([]any, 8193)), rabbitmq.ErrTooLarge},
		{"8,193 headers", func(p *amqp.Publishing) {
			for i := range 8193 {
				p.Headers[strconv.Itoa(i)] = nil
			}
		}, rabbitmq.ErrTooLarge},
		{"large in a table", header(amqp.Table{"x": make([]byte, 130<<10)}), rabbitmq.ErrTooLarge},
		{"long user-id", func(p *amqp.Publishing) { p.UserId = long }, rabbitmq.ErrTooLarge},
		{"long expiration", func(p *amqp.Publishing) { p.Expiration = long }, rabbitmq.ErrTooLarge},
	})
	if n := rabbitmq.OpenedBy(t, pub); n != 1 {
		t.Errorf("publisher opened %d channels, want 1", n)
	}
	if n := proxy.Cut(); n != 1 {
		t.Errorf("publisher used %d connections, want 1", n)
	}
}

// All values that AMQP can hold arrive, up to the limits.
func TestPublishPossibleHeaders(t *testing.T) {
	t.Parallel()
	publishEdited(t, []edit{
		{"nil", header(nil), nil},
		{"int", header(math.MinInt32), nil},
		{"byte", header(byte(200)), nil},
		{"unsigned", header([]any{uint16(math.MaxUint16), uint32(math.MaxUint32)}), nil},
		{"decimal", header(amqp.Decimal{Scale: 255, Value: math.MinInt32}), nil},
		{"32 arrays in each other", header(arrays(32)), nil},
		{"32 tables in each other", header(tables(32)), nil},
		{"array of 8,192", header(make([]any, 8192)), nil},
		{"no headers", func(p *amqp.Publishing) { p.Headers = nil }, nil},
		{"nearly a frame", header(strings.Repeat("x", 127<<10)), nil},
		{"no bytes of UTF-8", func(p *amqp.Publishing) { p.Type, p.Headers["\xff"] = "\xff\x00", "\xff\x00" }, nil},
	})
}

// If RabbitMQ closes the channel over a message, the Publisher finds it among the others, and refuses it
// alone.
func TestPublishRejectedByTheBroker(t *testing.T) {
	t.Parallel()
	_, proxy := publishEdited(t, []edit{
		{"expiration", func(p *amqp.Publishing) { p.Expiration = "soon" }, rabbitmq.ErrRejected},
		{"user-id", func(p *amqp.Publishing) { p.UserId = "somebody-else" }, rabbitmq.ErrRejected},
		{"reply-to without a consumer", func(p *amqp.Publishing) { p.ReplyTo = "amq.rabbitmq.reply-to" }, rabbitmq.ErrRejected},
		{"CC", func(p *amqp.Publishing) { p.Headers["CC"] = "x" }, rabbitmq.ErrRejected},
		{"BCC", func(p *amqp.Publishing) { p.Headers["BCC"] = int32(1) }, rabbitmq.ErrRejected},
	})
	if n := proxy.Cut(); n != 1 {
		t.Errorf("publisher used %d connections, want 1", n)
	}
}
