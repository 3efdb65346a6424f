package rabbitmq_test

import (
	"errors"
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

func TestNewConfigRefuses(t *testing.T) {
	t.Parallel()
	const url = "amqp://user:secret@localhost/"
	tests := []struct{ name, url, service, prefix string }{
		{"password with a slash", "amqp://user:sec/ret@localhost/", "svc", ""},
		{"bad escape", "amqp://user:secret%zz@localhost/", "svc", ""},
		{"no AMQP", "http://user:secret@localhost/", "svc", ""},
		{"no service", url, "", ""},
		{"service with a dot", url, "a.b", ""},
		{"service of the dead letters", url, "dead", ""},
		{"long names", url, "svc", strings.Repeat("p", 60)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := rabbitmq.NewConfig(tt.url, tt.service, &rabbitmq.ConfigOptions{Prefix: tt.prefix})
			if !errors.Is(err, rabbitmq.ErrConfig) || strings.Contains(err.Error(), "sec") {
				t.Errorf("NewConfig = %v, want ErrConfig without the password", err)
			}
		})
	}
}

// The longest topic of the outbox has room for the longest prefix and service.
func TestNewConfigLongestNames(t *testing.T) {
	t.Parallel()
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), "svc", &rabbitmq.ConfigOptions{Prefix: strings.Repeat("p", 46)})
	if err != nil {
		t.Fatal(err)
	}
	if name := cfg.Queue.GenerateName(strings.Repeat("t", outbox.MaxTopic)) + ".dead"; len(name) != 255 {
		t.Errorf("longest name has %d bytes, want 255", len(name))
	}
}

func TestPasswordIsNotInErrors(t *testing.T) {
	t.Parallel()
	_, absent := unreachable(t)
	pub := newPublisher(t, newConfig(t, absent), nil)
	if err := pub.Publish("orders", newMessage("x")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Publish = %v, want an error without the password", err)
	}
	cfg := newConfig(t, rabbittest.URL())
	cfg.Connection.AmqpURI = "amqp://user:secret%zz@localhost"
	if _, err := rabbitmq.NewPublisher(cfg, nil); !errors.Is(err, rabbitmq.ErrConfig) || strings.Contains(err.Error(), "secret") {
		t.Errorf("NewPublisher = %v, want ErrConfig without the password", err)
	}
}

// Settings made for watermill-amqp work as they are.
func TestWatermillConfig(t *testing.T) {
	t.Parallel()
	name := rabbittest.Name()
	rabbittest.Delete(t, []string{name + "q_svc"}, []string{name + "q"})
	cfg := wamqp.NewDurablePubSubConfig(rabbittest.URL(), wamqp.GenerateQueueNameTopicNameWithSuffix("svc"))
	messages, _ := subscribe(t, cfg, name+"q", fast())
	ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), name+"q", 3))
}

// A message that a service rejects for good lands in the dead-letter queue.
func TestDeadLetterQueue(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	cfg.Consume.NoRequeueOnNack = true
	messages, _ := subscribe(t, cfg, "orders", fast())
	ids := mustPublish(t, newPublisher(t, cfg, nil), "orders", 1)
	next(t, messages).Nack()
	dead := cfg
	dead.Queue.GenerateName = func(topic string) string { return cfg.Queue.GenerateName(topic) + ".dead" }
	dead.TopologyBuilder = noTopology{}
	letters, _ := subscribe(t, dead, "orders", fast())
	ackAll(t, letters, ids)
}
