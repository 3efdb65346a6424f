package rabbitmq_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

func TestPublishWindowOverflow(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Window: 7})
	mustPublish(t, pub, "orders", 500)
	queue, err := rabbittest.Channel(t, rabbittest.URL()).QueueDeclarePassive(cfg.Queue.GenerateName("orders"), true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if queue.Messages != 500 {
		t.Errorf("queue holds %d messages, want 500", queue.Messages)
	}
}

// An exchange without a queue confirms every message and keeps none.
func TestPublishUnroutable(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, rabbittest.URL(), "orders")
	pub := newPublisher(t, cfg, nil)
	err := pub.Publish("orders", newMessage("x"))
	if !errors.Is(err, rabbitmq.ErrUnroutable) || !errors.Is(err, outbox.ErrRefused) {
		t.Errorf("Publish = %v, want ErrUnroutable, an ErrRefused", err)
	}
}

// Every message has its own result, also with more returns than a window.
func TestPublishMixedResults(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	lost := newConfig(t, rabbittest.URL(), "lost")
	name := cfg.Exchange.GenerateName
	cfg.Exchange.GenerateName = func(topic string) string {
		if topic == "lost" {
			return lost.Exchange.GenerateName(topic)
		}
		return name(topic)
	}
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Window: 16, MaxPayload: 1000})
	batch := batchOf("orders", 300)
	want := make([]error, len(batch))
	for i := range batch {
		switch {
		case i == 100:
			batch[i].Message.Payload = make([]byte, 1001)
			want[i] = rabbitmq.ErrTooLarge
		case i%3 != 0:
			batch[i].Topic = "lost"
			want[i] = rabbitmq.ErrUnroutable
		}
	}
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		if !errors.Is(err, want[i]) {
			t.Errorf("message %d = %v, want %v", i, err, want[i])
		}
	}
}

// The same id twice in a batch, to two exchanges: returns carry the id alone.
func TestPublishSameIDTwice(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	pub := newPublisher(t, cfg, nil)
	name := cfg.Exchange.GenerateName
	rabbittest.Delete(t, nil, []string{name("lost")})
	batch := batchOf("orders", 2)
	batch[1].Topic, batch[1].Message.UUID = "lost", batch[0].Message.UUID
	results := pub.PublishBatch(t.Context(), batch)
	if results[0] != nil || !errors.Is(results[1], rabbitmq.ErrUnroutable) {
		t.Errorf("results = %v, want nil and ErrUnroutable", results)
	}
}

func TestPublishNacked(t *testing.T) {
	t.Parallel()
	cfg := newConfig(t, rabbittest.URL(), "orders")
	queue := cfg.Queue.GenerateName("orders")
	ch := rabbittest.Channel(t, rabbittest.URL())
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"}); err != nil {
		t.Fatal(err)
	}
	exchange := cfg.Exchange.GenerateName("orders")
	if err := errors.Join(ch.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil), ch.QueueBind(queue, "", exchange, false, nil)); err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, cfg, nil)
	rabbitmq.Opened(pub).Enable()
	mustPublish(t, pub, "orders", 1)
	err := pub.Publish("orders", newMessage("x"))
	if n := rabbitmq.OpenedBy(t, pub); n != 2 {
		t.Errorf("%d channels were opened for a message that is nacked on each, want 2", n)
	}
	if err := pub.Publish("orders", newMessage("y")); !errors.Is(err, rabbitmq.ErrNacked) {
		t.Errorf("Publish to a full queue = %v, want ErrNacked", err)
	}
	if n := rabbitmq.OpenedBy(t, pub); n != 2 {
		t.Errorf("%d channels were opened after two that had nacked, want 2 new ones", n)
	}
	if !errors.Is(err, rabbitmq.ErrNacked) || !errors.Is(err, outbox.ErrDeferred) || errors.Is(err, outbox.ErrRefused) {
		t.Errorf("Publish to a full queue = %v, want ErrNacked, an ErrDeferred and no ErrRefused", err)
	}
}

// A message that would close the connection is refused before it is sent: the other messages in the batch
// would be lost with it.
func TestPublishRefusedLocally(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	pub := newPublisher(t, through(cfg, proxy.URL()), nil)
	long := strings.Repeat("x", 256)
	batch := batchOf("orders", 9)
	batch[1].Message.UUID = long
	batch[2].Message.Metadata[outbox.PropertyType] = long
	batch[3].Message.Metadata[outbox.PropertyCorrelation] = long
	batch[4].Message.Metadata[outbox.PropertyContentType] = long
	batch[5].Message.Metadata[long] = "x"
	batch[6].Message.Metadata["x-large"] = strings.Repeat("x", 200<<10)
	batch[7].Topic = long
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		if refused := i > 0 && i < 8; refused != errors.Is(err, rabbitmq.ErrTooLarge) || !refused && err != nil {
			t.Errorf("message %d = %v", i, err)
		}
	}
	if n := proxy.Cut(); n != 1 {
		t.Errorf("publisher used %d connections, want 1", n)
	}
}

// RabbitMQ closes the channel over a CC header that is no array. The message
// must not take the others of its batch with it, nor come back for ever.
func TestPublishPoisonIsIsolated(t *testing.T) {
	t.Parallel()
	pub := newPublisher(t, declared(t, "orders"), nil)
	batch := batchOf("orders", 50)
	for _, i := range []int{20, 21, 40} {
		batch[i].Message.Metadata["CC"] = "x"
	}
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		poison := batch[i].Message.Metadata["CC"] != ""
		if poison != errors.Is(err, rabbitmq.ErrRejected) || !poison && err != nil {
			t.Errorf("message %d = %v", i, err)
		}
	}
}

// An exchange of another type cannot be declared; other topics go on.
func TestPublishExchangeMismatch(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	wrong := cfg.Exchange.GenerateName("wrong")
	rabbittest.Delete(t, nil, []string{wrong})
	if err := rabbittest.Channel(t, rabbittest.URL()).ExchangeDeclare(wrong, "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, cfg, nil)
	batch := batchOf("orders", 4)
	batch[0].Topic, batch[2].Topic = "wrong", "wrong"
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		if wrong := i%2 == 0; wrong != errors.Is(err, rabbitmq.ErrRejected) || !wrong && err != nil {
			t.Errorf("message %d = %v", i, err)
		}
	}
}

func TestPublishRedeclaresDeletedExchange(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders", "bills")
	pub := newPublisher(t, cfg, nil)
	mustPublish(t, pub, "orders", 1)
	exchange := cfg.Exchange.GenerateName("orders")
	if err := rabbittest.Channel(t, rabbittest.URL()).ExchangeDelete(exchange, false, false); err != nil {
		t.Fatal(err)
	}
	// The binding is gone with the exchange, so the message is refused now.
	batch := batchOf("orders", 2)
	batch[1].Topic = "bills"
	results := pub.PublishBatch(t.Context(), batch)
	if !errors.Is(results[0], rabbitmq.ErrUnroutable) || results[1] != nil {
		t.Errorf("results = %v, want ErrUnroutable and nil", results)
	}
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "orders"); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, pub, "orders", 1)
}

// The broker stores what it was sent, but its answers do not arrive before the
// connection is cut: unknown, not refused. Then publishing works again.
func TestPublishConnectionCut(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	pub := newPublisher(t, through(cfg, proxy.URL()), &rabbitmq.PublisherOptions{Window: 8})
	mustPublish(t, pub, "orders", 1)
	proxy.Stall(true)
	batch := batchOf("orders", 20)
	done := make(chan []error)
	go func() { done <- pub.PublishBatch(t.Context(), batch) }()
	direct, _ := subscribe(t, cfg, "orders", fast())
	for range 1 + 8 { // the broker has the whole window
		next(t, direct).Ack()
	}
	proxy.Cut()
	proxy.Stall(false)
	for i, err := range <-done {
		if !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, outbox.ErrRefused) {
			t.Errorf("message %d = %v, want ErrUnavailable, no ErrRefused", i, err)
		}
	}
	for i, err := range pub.PublishBatch(t.Context(), batch) {
		if err != nil {
			t.Errorf("message %d again: %v", i, err)
		}
	}
}

// ackFrame is basic.ack of a delivery tag on channel 1.
func ackFrame(tag byte) []byte {
	return []byte{1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, tag, 0, 0xCE}
}

// The broker may confirm in any order. What it has confirmed is known, also if
// the connection goes before it is that message's turn.
func TestPublishConfirmedOutOfTurn(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	cfg := declared(t, "orders")
	pub := newPublisher(t, through(cfg, proxy.URL()), nil)
	mustPublish(t, pub, "orders", 1)
	proxy.Stall(true)
	done := make(chan []error)
	go func() { done <- pub.PublishBatch(t.Context(), batchOf("orders", 4)) }()
	direct, _ := subscribe(t, cfg, "orders", fast())
	for range 1 + 4 {
		next(t, direct).Ack()
	}
	if err := errors.Join(proxy.Inject(ackFrame(3)), proxy.Inject(ackFrame(5)), proxy.Inject(forcedFrame)); err != nil {
		t.Fatal(err)
	}
	for i, err := range <-done {
		if confirmed := i%2 == 1; confirmed && err != nil || !confirmed && !errors.Is(err, rabbitmq.ErrUnavailable) {
			t.Errorf("message %d = %v; the second and the fourth are confirmed", i, err)
		}
	}
	proxy.Stall(false)
	mustPublish(t, pub, "orders", 1)
}

func TestPublishNoConfirm(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	cfg := through(declared(t, "orders"), proxy.URL())
	opts := &rabbitmq.PublisherOptions{ConfirmTimeout: 50 * time.Millisecond}
	opts.Connection.Heartbeat = time.Hour // so that nothing else ends the wait
	pub := newPublisher(t, cfg, opts)
	publishUntil(t, pub, "orders") // on a busy machine a confirm takes longer than that
	proxy.Stall(true)
	var err error
	within(t, "Publish", func() { err = pub.Publish("orders", newMessage("x")) })
	if !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, outbox.ErrRefused) {
		t.Errorf("Publish without an answer = %v, want ErrUnavailable, no ErrRefused", err)
	}
	proxy.Stall(false)
	publishUntil(t, pub, "orders")
}

func TestPublishContextEnds(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	pub := newPublisher(t, through(declared(t, "orders"), proxy.URL()), nil)
	mustPublish(t, pub, "orders", 1)
	proxy.Stall(true)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	within(t, "PublishBatch", func() {
		for i, err := range pub.PublishBatch(ctx, batchOf("orders", 3)) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("message %d = %v, want context.Canceled", i, err)
			}
		}
	})
	proxy.Stall(false)
	mustPublish(t, pub, "orders", 1)
}

// blockedFrame is connection.blocked with the reason "low", and unblockedFrame
// its end.
var (
	blockedFrame   = []byte{1, 0, 0, 0, 0, 0, 8, 0, 10, 0, 60, 3, 'l', 'o', 'w', 0xCE}
	unblockedFrame = []byte{1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 61, 0xCE}
)

// inFlight returns the result of a Publish whose message the broker has and
// whose confirm the proxy holds back.
func inFlight(t *testing.T, cfg wamqp.Config, pub *rabbitmq.Publisher, proxy *rabbittest.Proxy) chan error {
	t.Helper()
	mustPublish(t, pub, "orders", 1)
	proxy.Stall(true)
	done := make(chan error)
	go func() { done <- pub.Publish("orders", newMessage("x")) }()
	direct, _ := subscribe(t, cfg, "orders", fast())
	for range 2 {
		next(t, direct).Ack()
	}
	return done
}

func TestPublishBlocked(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	cfg := declared(t, "orders")
	pub := newPublisher(t, through(cfg, proxy.URL()), nil)
	done := inFlight(t, cfg, pub, proxy)
	if err := proxy.Inject(blockedFrame); err != nil {
		t.Fatal(err)
	}
	// The first call waits for a confirm; the second finds the state.
	for range 2 {
		if err := <-done; !errors.Is(err, rabbitmq.ErrBlocked) || errors.Is(err, outbox.ErrRefused) {
			t.Errorf("Publish while blocked = %v, want ErrBlocked, no ErrRefused", err)
		}
		go func() { done <- pub.Publish("orders", newMessage("x")) }()
	}
	<-done
	if err := proxy.Inject(unblockedFrame); err != nil {
		t.Fatal(err)
	}
	proxy.Stall(false)
	for { // the frame needs a moment to be read
		err := pub.Publish("orders", newMessage("x"))
		if err == nil {
			return
		}
		if !errors.Is(err, rabbitmq.ErrBlocked) {
			t.Fatalf("Publish after unblock: %v", err)
		}
	}
}

// unreachable returns the URLs of two ports: one accepts and never answers, on the other nothing listens.
func unreachable(t *testing.T) (silent, absent string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	return "amqp://user:secret@" + listener.Addr().String(), "amqp://user:secret@" + gone.Addr().String()
}

func TestPublisherCloseDuringOutage(t *testing.T) {
	t.Parallel()
	silent, absent := unreachable(t)
	for name, url := range map[string]string{"silent": silent, "absent": absent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pub := newPublisher(t, newConfig(t, url), nil)
			done := make(chan error)
			go func() {
				for {
					err := pub.Publish("orders", newMessage("x"))
					if errors.Is(err, rabbitmq.ErrClosed) || err == nil {
						done <- err
						return
					}
				}
			}()
			within(t, "Close", func() { pub.Close() })
			if err := <-done; !errors.Is(err, rabbitmq.ErrClosed) || strings.Contains(err.Error(), "secret") {
				t.Errorf("Publish = %v, want ErrClosed", err)
			}
		})
	}
}

// A broker that stops answering must not hold up Close.
func TestPublisherCloseWhileStalled(t *testing.T) {
	t.Parallel()
	proxy := rabbittest.NewProxy(t, rabbittest.URL())
	opts := &rabbitmq.PublisherOptions{
		Connection:     rabbitmq.ConnectionOptions{CloseTimeout: 50 * time.Millisecond, Heartbeat: time.Hour},
		ConfirmTimeout: time.Hour, // so that nothing but Close ends the wait
	}
	cfg := declared(t, "orders")
	pub := newPublisher(t, through(cfg, proxy.URL()), opts)
	done := inFlight(t, cfg, pub, proxy)
	within(t, "Close", func() { pub.Close() })
	if err := <-done; !errors.Is(err, rabbitmq.ErrUnavailable) {
		t.Errorf("Publish = %v, want ErrUnavailable", err)
	}
}

func TestPublishAfterClose(t *testing.T) {
	t.Parallel()
	pub := newPublisher(t, newConfig(t, rabbittest.URL()), nil)
	for range 2 {
		if err := pub.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := pub.Publish("orders", newMessage("x")); !errors.Is(err, rabbitmq.ErrClosed) {
		t.Errorf("Publish = %v, want ErrClosed", err)
	}
}

func TestPublishConcurrently(t *testing.T) {
	t.Parallel()
	pub := newPublisher(t, declared(t, "orders"), &rabbitmq.PublisherOptions{Channels: 2, Window: 4})
	done := make(chan error)
	for range 10 {
		go func() {
			done <- errors.Join(pub.PublishBatch(context.Background(), batchOf("orders", 20))...)
		}()
	}
	for range 10 {
		if err := <-done; err != nil {
			t.Errorf("PublishBatch: %v", err)
		}
	}
}

// A countedConn counts the calls of Write.
type countedConn struct {
	net.Conn
	writes *atomic.Int32
}

func (c countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// The messages of a batch cost one write to the socket, and so does one message.
func TestABatchIsWrittenTogether(t *testing.T) {
	t.Parallel()
	var writes atomic.Int32
	cfg := declared(t, "orders")
	cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		socket, err := net.Dial(network, addr)
		return countedConn{socket, &writes}, err
	}}
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{
		Connection: rabbitmq.ConnectionOptions{Heartbeat: time.Hour}, // so that nothing else is written
	})
	mustPublish(t, pub, "orders", 1) // opens the channel
	for _, n := range []int{1, 50} {
		before := writes.Load()
		mustPublish(t, pub, "orders", n)
		if got := writes.Load() - before; got != 1 {
			t.Errorf("a batch of %d messages took %d writes, want 1", n, got)
		}
	}
}
