package rabbitmq_test

import (
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// RabbitMQ 4.3 cancels a consumer whose handler takes longer than the consumer timeout. Its queue is there, so nothing is
// reported as lost, and the subscription goes on. So it is if the broker does not say whether the queue is there.
func TestACancelledConsumerWhoseQueueIsNotMissing(t *testing.T) {
	t.Parallel()
	for log, silent := range map[string]bool{"its queue is there": false, "does not say whether it is there": true} {
		t.Run(log, func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "orders")
			proxy := rabbittest.NewProxy(t, rabbittest.URL())
			told := make(chan string, 100)
			opts := fast()
			opts.Logger = slog.New(slog.NewTextHandler(lines(told), nil))
			messages, sub := subscribe(t, through(cfg, proxy.URL()), "orders", opts)
			until(t, "the subscription is served", func() bool { served, _ := sub.Subscription("orders"); return served })
			if err := proxy.Inject(cancelFrame(rabbitmq.ConsumerTag(t, sub))); err != nil {
				t.Fatal(err)
			}
			proxy.Stall(silent)
			awaitLine(t, told, log)
			proxy.Stall(false)
			ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), "orders", 3))
			if _, cancelled := sub.Subscription("orders"); cancelled != 0 {
				t.Errorf("%d subscriptions count as cancelled with their queue, want none", cancelled)
			}
		})
	}
}

// cancelFrame is basic.cancel on the first channel.
func cancelFrame(tag string) []byte {
	const method, channel, classBasic, methodCancel, noWait, end = 1, 1, 60, 30, 1, 0xce
	body := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, classBasic), methodCancel)
	body = append(append(append(body, byte(len(tag))), tag...), noWait)
	frame := binary.BigEndian.AppendUint32([]byte{method, 0, channel}, uint32(len(body)))
	return append(append(frame, body...), end)
}

// lines is a writer of log lines.
type lines chan<- string

func (l lines) Write(p []byte) (int, error) {
	select {
	case l <- string(p):
	default:
	}
	return len(p), nil
}

func awaitLine(t *testing.T, told <-chan string, part string) {
	t.Helper()
	for timeout := time.After(patience); ; {
		select {
		case line := <-told:
			if strings.Contains(line, part) {
				return
			}
		case <-timeout:
			t.Fatalf("no line with %q", part)
		}
	}
}

// A topic without traffic has messages in its dead-letter queue.
func TestAnIdleSubscriptionTellsOfDeadLetters(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	told := make(chan string, 100)
	opts := fast()
	opts.TopologyInterval, opts.Logger = 50*time.Millisecond, slog.New(slog.NewTextHandler(lines(told), nil))
	_, sub := subscribe(t, cfg, "orders", opts)
	until(t, "the subscription is served", func() bool { served, _ := sub.Subscription("orders"); return served })
	dead := cfg.Queue.GenerateName("orders") + ".dead"
	if err := rabbittest.Channel(t, rabbittest.URL()).PublishWithContext(t.Context(), "", dead, true, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	awaitLine(t, told, "level=ERROR msg=\"rabbitmq: messages that no consumer could settle are in the dead-letter queue\"")
}
