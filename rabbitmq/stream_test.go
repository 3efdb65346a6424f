package rabbitmq_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A Config of streams is refused before anything is declared.
func TestAConfigOfStreamsIsRefused(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, rabbittest.URL())
	cfg.Queue.Arguments[amqp.QueueTypeArg] = amqp.QueueTypeStream
	_, subErr := rabbitmq.NewSubscriber(cfg, nil)
	_, pubErr := rabbitmq.NewPublisher(cfg, nil)
	for name, err := range map[string]error{"NewSubscriber": subErr, "NewPublisher": pubErr, "DeclareTopology": rabbitmq.DeclareTopology(t.Context(), cfg, "orders")} {
		if !errors.Is(err, rabbitmq.ErrConfig) || !strings.Contains(err.Error(), "stream") {
			t.Errorf("%s = %v, want ErrConfig about a stream", name, err)
		}
	}
}

// A stream in place of a queue is refused at once, whether the queue would be declared, as
// quorum or classic queue, or only consumed.
func TestAStreamIsNoQueue(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, rabbittest.URL(), "orders")
	queue := cfg.Queue.GenerateName("orders")
	ch := rabbittest.Channel(t, rabbittest.URL())
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeStream}); err != nil {
		t.Fatal(err)
	}
	classic, passive := cfg, cfg
	classic.Queue.Arguments, classic.TopologyBuilder = nil, nil
	passive.TopologyBuilder = noTopology{}
	for name, err := range map[string]error{
		"quorum":          trySubscribe(t, cfg),
		"classic":         trySubscribe(t, classic),
		"not declared":    trySubscribe(t, passive),
		"DeclareTopology": rabbitmq.DeclareTopology(t.Context(), cfg, "orders"),
	} {
		if !errors.Is(err, rabbitmq.ErrConfig) || !strings.Contains(err.Error(), "is a stream") {
			t.Errorf("%s: %v, want ErrConfig that names a stream", name, err)
		}
	}
}

// trySubscribe returns the error of a subscription to orders.
func trySubscribe(t *testing.T, cfg wamqp.Config) error {
	t.Helper()
	sub, err := rabbitmq.NewSubscriber(cfg, fast())
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = sub.Subscribe(ctx, "orders")
	return err
}
