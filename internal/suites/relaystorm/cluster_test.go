package relaystorm

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// clusterPatience is how long a test waits for what must happen.
const clusterPatience = time.Minute

// A clusterRelay is a relay onto a cluster, and who writes for it.
type clusterRelay struct {
	t       *testing.T
	cluster *rabbitcluster.Cluster
	prefix  string
	pool    *pgxpool.Pool
	writer  *outbox.Writer
	relay   *outbox.Relay
	written map[string]int // messages by topic
}

func newClusterRelay(t *testing.T, c *rabbitcluster.Cluster, topics ...string) *clusterRelay {
	t.Helper()
	r := &clusterRelay{t: t, cluster: c, prefix: rabbittest.Name(), written: map[string]int{}}
	var schema string
	r.pool, schema = pgtest.Schema(t)
	cfg, err := rabbitmq.NewConfig(strings.Join(c.URLs(), ","), service, &rabbitmq.ConfigOptions{Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, topics...); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	pub, err := rabbitmq.NewPublisher(cfg, &rabbitmq.PublisherOptions{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if r.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: schema}); err != nil {
		t.Fatal(err)
	}
	// One attempt: a message that spends any is a dead letter.
	if r.relay, err = outbox.NewRelay(r.pool, pub, &outbox.RelayOptions{Schema: schema, MaxAttempts: 1, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		_ = pub.Close()
	})
	return r
}

func (r *clusterRelay) queue(topic string) string { return r.prefix + topic + "." + service }

// write writes n messages to a topic, each of ten keys in turn.
func (r *clusterRelay) write(topic string, n int) {
	r.t.Helper()
	for range n {
		number := r.written[topic]
		r.written[topic]++
		key := fmt.Sprint(topic, number%10)
		m := outbox.Message{Topic: topic, Scope: "s", Key: key, Step: "step", N: fmt.Sprint(number), Payload: fmt.Appendf(nil, "%s:%d", key, number)}
		if err := pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error { return r.writer.Write(r.t.Context(), tx, m) }); err != nil {
			r.t.Fatal(err)
		}
		r.relay.Wake()
	}
}

func (r *clusterRelay) stats() outbox.Stats {
	r.t.Helper()
	s, err := r.relay.Stats(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if s.Dead+s.Refused > 0 {
		r.t.Fatalf("messages were refused: %+v", s)
	}
	return s
}

// await polls until ok. Nothing tells when a cluster has done what it does.
func (r *clusterRelay) await(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(clusterPatience); !ok(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not within %v: %+v, %+v", what, clusterPatience, r.stats(), r.relay.Counters())
		}
	}
}

func (r *clusterRelay) published() bool {
	s := r.stats()
	return s.Stored+s.Waiting+s.Delayed == 0
}

// received reads all messages of a topic's queue, and checks that those that were written
// are there, those of each key in their order when they come first.
func (r *clusterRelay) received(topic string, node int) {
	r.t.Helper()
	ch := rabbittest.Channel(r.t, r.cluster.Node(node).URL())
	deliveries, err := ch.Consume(r.queue(topic), "", true, false, false, false, amqp.Table{})
	if err != nil {
		r.t.Fatal(err)
	}
	last, seen := map[string]int{}, map[string]bool{}
	for len(seen) < r.written[topic] {
		select {
		case d := <-deliveries:
			text := string(d.Body)
			if seen[text] {
				continue
			}
			seen[text] = true
			key, number, _ := strings.Cut(text, ":")
			var n int
			_, _ = fmt.Sscan(number, &n)
			if before, known := last[key]; known && n != before+10 || !known && n >= 10 {
				r.t.Errorf("%s came first after %s:%d", text, key, before)
			}
			last[key] = n
		case <-time.After(clusterPatience):
			r.t.Fatalf("%d messages to %s of %d have come", len(seen), topic, r.written[topic])
		}
	}
}

// A relay goes on when the leader of a queue dies, without the dead node, without an
// attempt spent, and in order. A queue without a majority costs other topics nothing.
func TestRelayOnACluster(t *testing.T) {
	t.Parallel()
	c := rabbittest.StartCluster(t, nil)
	t.Run("a leader dies", func(t *testing.T) {
		r := newClusterRelay(t, c, "orders")
		if err := c.MoveLeader(r.queue("orders"), 2); err != nil {
			t.Fatal(err)
		}
		if err := c.Node(2).Sync(); err != nil {
			t.Fatal(err)
		}
		r.write("orders", 200)
		c.Kill(2)
		r.write("orders", 1000)
		r.await("all is published while the node is away", r.published)
		r.write("orders", 100)
		r.await("all is published while the node is away", r.published)
		r.received("orders", 0)
		if err := c.Start(2); err != nil {
			t.Fatal(err)
		}
		if err := c.AwaitAll(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a queue without a majority", func(t *testing.T) {
		r := newClusterRelay(t, c, "red", "blue")
		if err := c.MoveLeader(r.queue("red"), 1); err != nil {
			t.Fatal(err)
		}
		if err := c.Shrink(r.queue("red"), 0); err != nil {
			t.Fatal(err)
		}
		if err := c.Node(2).Sync(); err != nil {
			t.Fatal(err)
		}
		c.Kill(2)
		for range 300 {
			r.write("red", 2)
			r.write("blue", 1)
		}
		r.await("the messages of the other topic are published, and those of this one kept aside", func() bool {
			s := r.stats()
			return s.Stored == 0 && s.Waiting == 600 && r.relay.Counters().Stalled == 1
		})
		r.received("blue", 0)
		if err := c.Start(2); err != nil {
			t.Fatal(err)
		}
		r.await("all is published", r.published)
		r.received("red", 0)
		if n := r.relay.Counters().Stalled; n != 0 {
			t.Errorf("%d topics stall in the end", n)
		}
	})
}
