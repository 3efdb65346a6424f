package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A goldenMessage is a message of version 1 of the format, as package outbox publishes
// it and as RabbitMQ gets it.
type goldenMessage struct {
	Name, Topic, ID string
	Metadata        message.Metadata
	Payload         string
	AMQP            amqp.Publishing
}

func (g goldenMessage) message() *message.Message {
	msg := message.NewMessage(g.ID, []byte(g.Payload))
	maps.Copy(msg.Metadata, g.Metadata)
	return msg
}

func format1(t *testing.T) (all []goldenMessage) {
	t.Helper()
	raw, err := os.ReadFile("../outbox/testdata/format-1.json")
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil || len(all) == 0 {
		t.Fatalf("%d messages: %v", len(all), err)
	}
	return all
}

// The properties and headers of version 1 on RabbitMQ are as they always were, and what
// arrives is what was sent.
func TestFormat1OnRabbitMQ(t *testing.T) {
	t.Parallel()
	for _, g := range format1(t) {
		sent, err := rabbitmq.Marshaler{}.Marshal(g.message())
		if err != nil {
			t.Fatal(err)
		}
		g.AMQP.Body = []byte(g.Payload)
		for name, value := range map[string]string{
			outbox.PropertyType: sent.Type, outbox.PropertyCorrelation: sent.CorrelationId, outbox.PropertyContentType: sent.ContentType,
			outbox.PropertyTimestamp: g.Metadata[outbox.PropertyTimestamp], "_watermill_message_uuid": g.ID,
		} { // headers too since watermill-amqp understands our messages; older readers ignore them
			if sent.Headers[name] != value {
				t.Errorf("%s: header %s is %v, want %q", g.Name, name, sent.Headers[name], value)
			}
			if g.AMQP.Headers[name] == nil {
				delete(sent.Headers, name)
			}
		}
		if diff := cmp.Diff(g.AMQP, sent, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-version 1 +sent):\n%s", g.Name, diff)
		}
		sent, _ = rabbitmq.Marshaler{}.Marshal(g.message())
		came, err := rabbitmq.Marshaler{}.Unmarshal(amqp.Delivery{
			MessageId: sent.MessageId, Type: sent.Type, CorrelationId: sent.CorrelationId, ContentType: sent.ContentType,
			Timestamp: sent.Timestamp, Headers: sent.Headers, Body: sent.Body,
		})
		if err != nil || came.UUID != g.ID || !maps.Equal(came.Metadata, g.Metadata) || string(came.Payload) != g.Payload {
			t.Errorf("%s came as %s %v %s (%v)", g.Name, came.UUID, came.Metadata, came.Payload, err)
		}
	}
}

// Today's reader reads messages of format 1, with or without the format header. It keeps messages of a newer or
// unknown format as dead letters without a step, which a newer reader can run.
func TestFormatVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"": "done order:42 7, done order:43 2.d 8", "1": "done order:42 7, done order:43 2.d 8",
		"2": "format-unknown, format-unknown", "10": "format-unknown, format-unknown", "1.1": "format-unknown, format-unknown",
		"0": "format-unknown, format-unknown", "01": "format-unknown, format-unknown", "-1": "format-unknown, format-unknown",
		"\xff\x00 \n": "format-unknown, format-unknown", strings.Repeat("9", 1000): "format-unknown, format-unknown",
	} {
		t.Run(version[:min(len(version), 4)], func(t *testing.T) {
			t.Parallel()
			pool, schema := pgtest.Schema(t, createEffects)
			s := &service{pool: pool, schema: schema}
			var read []string
			step := consumer.Step{Name: "process-payment", Action: consumer.On("pay", s.noting(&read))}
			c := get(consumer.New(pool, nil, []consumer.Step{step}, &consumer.Options{Schema: schema, Logger: slog.New(slog.DiscardHandler)}))
			for _, g := range format1(t) {
				msg := g.message()
				if version != "" {
					msg.Metadata.Set(outbox.HeaderFormat, version)
				}
				if err := c.Handle(t.Context(), g.Topic, msg); err != nil {
					t.Fatal(err)
				}
			}
			rows, _ := pool.Query(t.Context(), s.bind("SELECT reason FROM {schema}.parked WHERE kind = 'unknown' ORDER BY id"))
			letters, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if got := strings.Join(append(read, letters...), ", "); err != nil || got != want {
				t.Errorf("%q, %v; want %q", got, err, want)
			}
		})
	}
}

// noting returns a handler that notes what it reads.
func (s *service) noting(read *[]string) consumer.Handler[charge] {
	return func(_ context.Context, _ pgx.Tx, in consumer.Message[charge], _ consumer.Emit) error {
		*read = append(*read, strings.Join(strings.Fields(fmt.Sprint("done ", in.Key, " ", in.N, " ", in.Body.Amount)), " "))
		return nil
	}
}
