package rabbitmq_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// The payloads that a badConn knows.
const (
	poison = "the broker closes the connection over this"
	vanish = "the connection is gone once this is sent"
)

// A badConn simulates content of a message that makes RabbitMQ close the connection. It spoils the end of the
// frame that holds poison, so that the broker answers with the exception 501, FRAME_ERROR. The frame with
// vanish closes the connection without an exception.
type badConn struct {
	net.Conn
	spoils *atomic.Int32 // how often it still does that
}

func (c badConn) Write(b []byte) (int, error) {
	if i := bytes.Index(b, []byte(poison)); i >= 0 && c.spoils.Add(-1) >= 0 {
		b = bytes.Clone(b)
		b[i+len(poison)] = 0
	}
	if bytes.Contains(b, []byte(vanish)) {
		c.Close()
	}
	return c.Conn.Write(b)
}

// always is more often than any test sends a poison.
const always = 1 << 20

// onBadConns returns cfg with connections on which poison works a number of
// times, and vanish, and how many were made.
func onBadConns(cfg wamqp.Config, times int32) (wamqp.Config, *atomic.Int32) {
	var made, spoils atomic.Int32
	spoils.Store(times)
	cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		conn, err := net.Dial(network, addr)
		made.Add(1)
		return badConn{conn, &spoils}, err
	}}
	return cfg, &made
}

// A message that ends the connection whenever it is sent is refused, and no
// other is, wherever it is in the batch.
func TestPublishFindsWhatClosesTheConnection(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		n       int
		culprit []int
	}{
		{"among others", 30, []int{12, 13, 29}},
		{"first", 5, []int{0}},
		{"alone", 1, []int{0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, _ := onBadConns(declared(t, "orders"), always)
			pub := newPublisher(t, cfg, nil)
			batch := batchOf("orders", tt.n)
			for _, i := range tt.culprit {
				batch[i].Message.Payload = []byte(poison)
			}
			for i, err := range pub.PublishBatch(t.Context(), batch) {
				if guilty := string(batch[i].Message.Payload) == poison; guilty != errors.Is(err, rabbitmq.ErrRejected) || !guilty && err != nil {
					t.Errorf("message %d = %v", i, err)
				}
			}
			mustPublish(t, pub, "orders", 1) // on the shared connection
		})
	}
}

// A broker in trouble closes connections with the same words. Once over a message
// that is alone on one is not enough to refuse it.
func TestPublishOneExceptionIsNotEnough(t *testing.T) {
	t.Parallel()
	cfg, made := onBadConns(declared(t, "orders"), 2)
	pub := newPublisher(t, cfg, nil)
	msg := newMessage(poison)
	if err := pub.Publish("orders", msg); err != nil {
		t.Errorf("Publish: %v", err)
	}
	if n := made.Load(); n != 3 {
		t.Errorf("publisher dialled %d times, want 3: shared, alone, alone again", n)
	}
}

// The batches that lose their connection over another one's message all go
// through.
func TestPublishOthersSurviveWhatClosesTheConnection(t *testing.T) {
	t.Parallel()
	cfg, _ := onBadConns(declared(t, "orders"), always)
	pub := newPublisher(t, cfg, nil)
	mustPublish(t, pub, "orders", 1)
	done := make(chan error)
	for caller := range callers {
		go func() {
			var wrong error
			for round := range 3 {
				batch := batchOf("orders", 100)
				if caller == 0 {
					batch[50+round].Message.Payload = []byte(poison)
				}
				for i, err := range pub.PublishBatch(t.Context(), batch) {
					if guilty := string(batch[i].Message.Payload) == poison; guilty != errors.Is(err, rabbitmq.ErrRejected) || !guilty && err != nil {
						wrong = errors.Join(wrong, err)
					}
				}
			}
			done <- wrong
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			t.Errorf("caller: %v", err)
		}
	}
}

// A connection that merely goes says nothing about the message, also when it is
// the only one on it.
func TestPublishRefusesNothingOverALostConnection(t *testing.T) {
	t.Parallel()
	cfg, made := onBadConns(declared(t, "orders"), always)
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Window: 1}) // or the last would go before the first is found
	batch := batchOf("orders", 3)
	batch[0].Message.Payload = []byte(poison) // the batch gets a connection of its own
	batch[2].Message.Payload = []byte(vanish)
	results := pub.PublishBatch(t.Context(), batch)
	if !errors.Is(results[0], rabbitmq.ErrRejected) || results[1] != nil {
		t.Errorf("results = %v, want ErrRejected and nil before the last", results)
	}
	for range 3 {
		if err := results[2]; !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, outbox.ErrRefused) {
			t.Errorf("Publish = %v, want ErrUnavailable, no ErrRefused", err)
		}
		before := made.Load()
		results[2] = pub.PublishBatch(t.Context(), batch[2:])[0]
		if n := made.Load() - before; n != 1 {
			t.Errorf("Publish dialled %d times, want once: nobody is suspected", n)
		}
	}
}

// forcedFrame is connection.close with the exception 320, CONNECTION_FORCED, as
// an operator or a broker that stops sends it.
var forcedFrame = []byte{1, 0, 0, 0, 0, 0, 11, 0, 10, 0, 50, 1, 64, 0, 0, 0, 0, 0, 0xCE}

func TestPublishConnectionForced(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	cfg := declared(t, "orders")
	pub := newPublisher(t, through(cfg, proxy.URL()), nil)
	done := inFlight(t, cfg, pub, proxy)
	if err := proxy.Inject(forcedFrame); err != nil {
		t.Fatal(err)
	}
	err := <-done
	if e := new(amqp.Error); !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, outbox.ErrRefused) || !errors.As(err, &e) || e.Code != amqp.ConnectionForced {
		t.Errorf("Publish = %v, want ErrUnavailable with the exception 320, no ErrRefused", err)
	}
	proxy.Stall(false)
	mustPublish(t, pub, "orders", 1)
}

// internalFrame is connection.close with the exception 541, INTERNAL_ERROR, as a node that stops sends it.
var internalFrame = []byte{1, 0, 0, 0, 0, 0, 11, 0, 10, 0, 50, 2, 29, 0, 0, 0, 0, 0, 0xCE}

// Nobody looks for a mistake in what was sent because a node stops.
func TestPublishInternalError(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	cfg := declared(t, "orders")
	lines := &strings.Builder{}
	pub := newPublisher(t, through(cfg, proxy.URL()), &rabbitmq.PublisherOptions{Logger: slog.New(slog.NewTextHandler(lines, nil))})
	done := inFlight(t, cfg, pub, proxy)
	if err := proxy.Inject(internalFrame); err != nil {
		t.Fatal(err)
	}
	proxy.Stall(false)
	if err := <-done; err != nil {
		t.Errorf("Publish = %v, want nil after another connection", err)
	}
	if text := lines.String(); !strings.Contains(text, "internal error") || !strings.Contains(text, "exception=541") || strings.Contains(text, "something that was sent") {
		t.Errorf("the log blames what was sent: %s", text)
	}
}

// Close does not wait for a batch on a separate connection.
func TestPublisherCloseWhileIsolating(t *testing.T) {
	t.Parallel()
	cfg, _ := onBadConns(declared(t, "orders"), always)
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Window: 1})
	rabbitmq.Opened(pub).Enable()
	batch := batchOf("orders", 512)
	for i := range batch {
		batch[i].Message.Payload = []byte(poison) // two connections each
	}
	done := make(chan []error)
	go func() { done <- pub.PublishBatch(t.Context(), batch) }()
	for range 4 {
		rabbitmq.Opened(pub).Wait(t)
	}
	within(t, "Close", func() { pub.Close() })
	results := <-done
	if last := results[len(results)-1]; !errors.Is(last, rabbitmq.ErrClosed) || errors.Is(last, outbox.ErrRefused) {
		t.Errorf("last result = %v, want ErrClosed, no ErrRefused", last)
	}
	if !errors.Is(results[0], rabbitmq.ErrRejected) {
		t.Errorf("first result = %v, want ErrRejected", results[0])
	}
}

// A fragileConn closes itself over a request.
type fragileConn struct {
	net.Conn
	request []byte
}

func (c fragileConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, c.request) {
		c.Close()
	}
	return c.Conn.Write(b)
}

// As long as no message is under way, another connection will do.
func TestPublishConnectionGoesBeforeSending(t *testing.T) {
	t.Parallel()
	for name, request := range map[string][]byte{
		"channel.open": {0, 20, 0, 10, 0}, "confirm.select": {0, 85, 0, 10, 0}, "exchange.declare": {0, 40, 0, 10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := declared(t, "orders")
			var made atomic.Int32
			cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
				conn, err := net.Dial(network, addr)
				if made.Add(1) > 1 {
					return conn, err
				}
				return fragileConn{conn, request}, err
			}}
			mustPublish(t, newPublisher(t, cfg, nil), "orders", 3)
			if n := made.Load(); n != 2 {
				t.Errorf("publisher dialled %d times, want 2", n)
			}
		})
	}
}
