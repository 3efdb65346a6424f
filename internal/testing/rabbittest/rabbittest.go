// Package rabbittest gives tests three kinds of RabbitMQ. AMQP_URL names the shared broker, on which each
// test uses unique names. A proxy in front of it can cut its connections. Private nodes can be killed.
package rabbittest

import (
	"cmp"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/brokerurls"
)

// URL returns the first URL of AMQP_URL, or the usual address of RabbitMQ on a developer's machine. The
// broker is shared: never stop it, block it or list its queues.
func URL() string {
	return cmp.Or(brokerurls.Split(os.Getenv("AMQP_URL"))[0], "amqp://guest:guest@127.0.0.1:5672/")
}

// Name returns a unique prefix for exchanges and queues.
func Name() string { return "t-" + strings.ToLower(rand.Text()[:14]) + "-" }

// Channel opens a channel on url, closed when the test ends. Its return of an
// exception closes it: use one for each thing that may fail.
func Channel(t testing.TB, url string) *amqp.Channel {
	t.Helper()
	connection, err := amqp.Dial(url)
	if err != nil {
		t.Fatalf("no test broker (run `make test`, or set AMQP_URL): %v", err)
	}
	t.Cleanup(func() { connection.Close() })
	ch, err := connection.Channel()
	if err != nil {
		t.Fatalf("open channel: %v", err)
	}
	return ch
}

// Delete deletes queues and exchanges on the broker of [URL] when the test ends. They need not exist.
func Delete(t testing.TB, queues, exchanges []string) {
	t.Cleanup(func() {
		connection, err := amqp.Dial(URL())
		if err != nil {
			t.Errorf("clean up: %v", err)
			return
		}
		defer connection.Close()
		ch, err := connection.Channel()
		for _, queue := range queues {
			if err == nil {
				_, err = ch.QueueDelete(queue, false, false, false)
			}
		}
		for _, exchange := range exchanges {
			if err == nil {
				err = ch.ExchangeDelete(exchange, false, false)
			}
		}
		if err != nil && !errors.Is(err, amqp.ErrClosed) {
			t.Errorf("clean up: %v", err)
		}
	})
}
