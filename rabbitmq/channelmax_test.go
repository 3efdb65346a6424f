package rabbitmq_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/rabbitmq"
)

// A broker that allows few channels on a connection gets no more, and messages wait for one. The log says so once.
func TestChannelMax(t *testing.T) {
	t.Parallel()
	for _, allowed := range []uint16{3, 4, 8} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "orders")
			cfg.Connection.AmqpConfig = &amqp.Config{ChannelMax: allowed}
			told := make(chan string, 1000)
			pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Channels: 16, Logger: slog.New(slog.NewTextHandler(lines(told), nil))})
			var publishing sync.WaitGroup
			for range 64 {
				publishing.Go(func() {
					if err := pub.Publish("orders", newMessage("x")); err != nil {
						t.Error(err)
					}
				})
			}
			publishing.Wait()
			close(told)
			warnings := 0
			for line := range told {
				if warnings++; !strings.Contains(line, "channel_max") {
					t.Errorf("the log says %s", line)
				}
			}
			if warnings != 1 {
				t.Errorf("%d warnings, want one", warnings)
			}
		})
	}
}
