package relaytargets

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/redistest"
)

// redeliverAfter is when a broker hands an unacked message to another subscriber.
const redeliverAfter = 2 * time.Second

// natsWait is how long a publisher waits for the server's answer.
const natsWait = time.Second

// A broker is a target of a relay, set up as docs/other-brokers.md says, with
// names of the test's own.
type broker interface {
	topic(name string) string
	publisher(t testing.TB) message.Publisher
	// subscriber returns one of a service, which shares what comes to topic with
	// the service's others.
	subscriber(t testing.TB, service, topic string) message.Subscriber
}

// A remote broker is a server, which may be reached through a proxy at another
// address.
type remote interface {
	broker
	addr() string
	at(addr string) remote
}

// onEachBroker runs a test on each.
func onEachBroker(t *testing.T, test func(t *testing.T, b broker)) {
	t.Run("gochannel", func(t *testing.T) {
		t.Parallel()
		test(t, newChannel(t))
	})
	onEachServer(t, func(t *testing.T, b remote) { test(t, b) })
}

// onEachServer leaves out the broker within the process.
func onEachServer(t *testing.T, test func(t *testing.T, b remote)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, newRedis(t))
	})
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		test(t, newNATS(t))
	})
}

// channel is watermill's gochannel. Without waiting for the ack it would deliver
// in any order, and lose what a subscriber has not taken yet.
type channel struct{ *gochannel.GoChannel }

func newChannel(t testing.TB) channel {
	c := gochannel.NewGoChannel(gochannel.Config{Persistent: true, BlockPublishUntilSubscriberAck: true}, nil)
	t.Cleanup(func() { _ = c.Close() })
	return channel{c}
}

func (channel) topic(name string) string                                  { return name }
func (c channel) publisher(testing.TB) message.Publisher                  { return c.GoChannel }
func (c channel) subscriber(_ testing.TB, _, _ string) message.Subscriber { return c.GoChannel }

// redisStreams are streams under a prefix.
type redisStreams struct {
	opts   *redis.Options
	prefix string
}

func newRedis(t testing.TB) redisStreams {
	opts := redistest.Options(t)
	opts.MaxRetries, opts.DialerRetries = -1, 1 // it is the relay that tries again
	return redisStreams{opts, redistest.Prefix(t)}
}

func (b redisStreams) topic(name string) string { return b.prefix + name }
func (b redisStreams) addr() string             { return b.opts.Addr }

func (b redisStreams) at(addr string) remote {
	opts := *b.opts
	opts.Addr = addr
	b.opts = &opts
	return b
}

func (b redisStreams) publisher(t testing.TB) message.Publisher {
	p, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: redis.NewClient(b.opts)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (b redisStreams) subscriber(t testing.TB, service, _ string) message.Subscriber {
	s, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: redis.NewClient(b.opts), ConsumerGroup: service,
		DisableIndefiniteInitialBlock: true, // or Close waits for a message
		MaxIdleTime:                   redeliverAfter, ClaimInterval: redeliverAfter / 10,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// natsStream is a stream with all topics below its name.
type natsStream struct {
	url  *url.URL
	name string
	js   nats.JetStreamContext
}

func newNATS(t testing.TB) natsStream {
	server := cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL)
	if server == devservices.NoNATS {
		needtest.Missing(t, "nats", "no NATS with JetStream on this machine")
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal("NATS_URL is not a URL")
	}
	conn, err := nats.Connect(server)
	if err != nil {
		t.Fatalf("no test NATS (run `make test`, or set NATS_URL): %v", err)
	}
	t.Cleanup(conn.Close)
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	b := natsStream{u, pgtest.Name(), js}
	if _, err := js.AddStream(&nats.StreamConfig{Name: b.name, Subjects: []string{b.name + ".>"}}); err != nil {
		t.Fatalf("AddStream: %v", err)
	}
	t.Cleanup(func() {
		if err := js.DeleteStream(b.name); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return b
}

func (b natsStream) topic(name string) string { return b.name + "." + name }
func (b natsStream) addr() string             { return b.url.Host }

func (b natsStream) at(addr string) remote {
	u := *b.url
	u.Host = addr
	b.url = &u
	return b
}

// options let a program start before the server and outlast an outage of it: by
// default a connection gives up after two minutes, for good.
func (natsStream) options() []nats.Option {
	return []nats.Option{nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond)}
}

func (b natsStream) publisher(t testing.TB) message.Publisher {
	p, err := wnats.NewPublisher(wnats.PublisherConfig{
		URL: b.url.String(), NatsOptions: b.options(),
		Marshaler: wnats.JSONMarshaler{}, // as headers, values lose blanks at their ends
		JetStream: wnats.JetStreamConfig{ConnectOptions: []nats.JSOpt{nats.MaxWait(natsWait)}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// subscriber makes the service's consumer on the server. One that the subscriber
// made would be deleted with it.
func (b natsStream) subscriber(t testing.TB, service, topic string) message.Subscriber {
	durable := func(_, topic string) string { return service + "_" + strings.ReplaceAll(topic, ".", "_") }
	_, err := b.js.AddConsumer(b.name, &nats.ConsumerConfig{
		Durable: durable("", topic), FilterSubject: topic, DeliverSubject: "deliver-" + topic + "." + service, DeliverGroup: service,
		AckPolicy: nats.AckExplicitPolicy, AckWait: redeliverAfter,
	})
	if err != nil {
		t.Fatalf("AddConsumer: %v", err)
	}
	conn, err := nats.Connect(b.url.String(), b.options()...)
	if err != nil {
		t.Fatal(err)
	}
	s, err := wnats.NewSubscriberWithNatsConn(conn, wnats.SubscriberSubscriptionConfig{
		QueueGroupPrefix: service, Unmarshaler: wnats.JSONMarshaler{}, AckWaitTimeout: redeliverAfter,
		JetStream: wnats.JetStreamConfig{
			DurableCalculator: durable,
			SubscribeOptions:  []nats.SubOpt{nats.ManualAck()}, // or what a closing subscriber holds is acked
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		conn.Close()
	})
	return byClose{s}
}

// byClose ends its subscriptions with Close. One whose context ends while messages
// come panics once in some thousand times: it sends to a channel that it has closed.
type byClose struct{ message.Subscriber }

func (s byClose) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s.Subscriber.Subscribe(context.WithoutCancel(ctx), topic)
}
