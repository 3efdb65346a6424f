package rabbitmq

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// requestPatience is how long a test waits for what must happen.
const requestPatience = 30 * time.Second

// connected returns a connection to the broker at url with a short RequestTimeout.
func connected(t *testing.T, url string) *conn {
	t.Helper()
	cfg := wamqp.Config{Connection: wamqp.ConnectionConfig{AmqpURI: url}}
	l := newLink(cfg, ConnectionOptions{RequestTimeout: 500 * time.Millisecond}, slog.New(slog.DiscardHandler))
	t.Cleanup(l.closeLink)
	c, err := l.getConnection(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// stick asks for what is not answered before answer is closed or c is dropped.
func stick(t *testing.T, c *conn, answer <-chan struct{}) {
	t.Helper()
	_, err := requestOnChannel(t.Context(), c, func(*amqp.Channel) (any, error) {
		select {
		case <-answer:
			return nil, nil
		case <-c.dead:
			return nil, amqp.ErrClosed
		}
	})
	if !errors.Is(err, errTimeout) {
		t.Errorf("a request without an answer returns %v, want errTimeout", err)
	}
}

// await waits until condition holds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(requestPatience); !condition(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not happen", what)
		}
	}
}

// A request that is not answered costs its own channel, until too many of them wait.
func TestAStuckRequestCostsItsChannel(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	c := connected(t, rabbittest.URL())
	for range 2 {
		answer := make(chan struct{})
		for range maxStuck {
			stick(t, c, answer)
		}
		close(answer)
		await(t, "the end of all requests", func() bool { return c.stuck.Load() == 0 })
	}
	for range maxStuck {
		stick(t, c, nil)
	}
	if !c.isAlive() {
		t.Fatalf("the connection is dropped with %d requests stuck", maxStuck)
	}
	stick(t, c, nil)
	await(t, "the end of a connection with one stuck request too many", func() bool { return !c.isAlive() })
}

// A connection on which nothing is answered is dropped with the first request.
func TestASilentConnectionIsDropped(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	c := connected(t, proxy.URL())
	proxy.Stall(true)
	stick(t, c, nil)
	await(t, "the end of the connection", func() bool { return !c.isAlive() })
}
