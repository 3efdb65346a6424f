package rabbitmq_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A limitedShop is an outbox whose relay publishes to a broker with a policy, and two
// services that listen.
type limitedShop struct {
	t       *testing.T
	pool    *pgxpool.Pool
	schema  string
	node    *rabbittest.Node
	ch      *amqp.Channel
	configs map[string]wamqp.Config // by service
	relay   *outbox.Relay
}

// Of a limited shop.
const (
	limitedLength = 5
	limitedTopic  = "orders"
)

// newLimitedShop starts a relay. pattern is that of a policy for queues, which says more than
// their length in more.
func newLimitedShop(t *testing.T, node *rabbittest.Node, prefix, pattern, more string) *limitedShop {
	t.Helper()
	s := &limitedShop{t: t, node: node, ch: rabbittest.Channel(t, node.URL()), configs: map[string]wamqp.Config{}}
	s.pool, s.schema = pgtest.Schema(t)
	node.Ctl(t, "set_policy", prefix, pattern, fmt.Sprintf(`{"max-length":%d%s}`, limitedLength, more), "--apply-to", "queues")
	for _, name := range []string{"limited", "free"} {
		cfg, err := rabbitmq.NewConfig(node.URL(), name, &rabbitmq.ConfigOptions{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		if err := rabbitmq.DeclareTopology(t.Context(), cfg, limitedTopic); err != nil {
			t.Fatal(err)
		}
		s.configs[name] = cfg
	}
	var err error
	s.relay, err = outbox.NewRelay(s.pool, newPublisher(t, s.configs["free"], nil), &outbox.RelayOptions{
		Schema: s.schema, Retention: time.Hour, Logger: quiet,
		RetryBase: time.Millisecond, RetryCap: 20 * time.Millisecond, MaxAttempts: 1_000_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// write stores n messages under a key, whose payloads count.
func (s *limitedShop) write(key string, n int) {
	s.t.Helper()
	w, err := outbox.NewWriter(&outbox.WriterOptions{Schema: s.schema})
	if err != nil {
		s.t.Fatal(err)
	}
	err = pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		for i := range n {
			msg := outbox.Message{Topic: limitedTopic, Scope: "s", Key: key, N: strconv.Itoa(i), Step: "step", Payload: []byte(strconv.Itoa(i))}
			if err := w.Write(s.t.Context(), tx, msg); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// await polls the relay's figures. Nothing else tells that messages wait.
func (s *limitedShop) await(what string, ok func(outbox.Stats) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		stats, err := s.relay.Stats(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		if ok(stats) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not within %s: %+v", what, patience, stats)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// allOut reports whether everything is published.
func allOut(s outbox.Stats) bool { return s.Stored+s.Refused+s.Waiting+s.Dead == 0 }

// length is how many messages a queue has.
func (s *limitedShop) length(queue string) int {
	s.t.Helper()
	q, err := s.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return q.Messages
}

// queue is that of a service.
func (s *limitedShop) queue(name string) string {
	return s.configs[name].Queue.GenerateName(limitedTopic)
}

// firsts acks what comes until there are n different messages, and returns their payloads in
// the order of their first arrivals.
func firsts(t *testing.T, in <-chan *message.Message, n int) (payloads []string) {
	t.Helper()
	seen := map[string]bool{}
	for len(seen) < n {
		msg := next(t, in)
		if !seen[msg.UUID] {
			seen[msg.UUID] = true
			payloads = append(payloads, string(msg.Payload))
		}
		msg.Ack()
	}
	return payloads
}

// TestPrivateBrokerLimitedQueues has what policies of an operator do to queues that are full.
func TestPrivateBrokerLimitedQueues(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	node := rabbittest.StartNode(t)
	t.Run("it refuses", func(t *testing.T) { testAFullQueueRefuses(t, node, "refuse.", `,"overflow":"reject-publish"`) })
	t.Run("it says nothing", func(t *testing.T) { testAFullQueueRefuses(t, node, "limit.", "") })
	t.Run("it drops", func(t *testing.T) { testAFullQueueDrops(t, node) })
}

// A queue that refuses loses nothing, and keeps the order of a key. Who listens besides gets
// copies meanwhile.
func testAFullQueueRefuses(t *testing.T, node *rabbittest.Node, prefix, more string) {
	const n = 3 * limitedLength
	s := newLimitedShop(t, node, prefix, "^"+prefix+`orders\.limited$`, more)
	s.write("k", n)
	s.await("all wait", func(st outbox.Stats) bool { return st.Waiting > 0 && st.Stored+st.Refused+st.Dead == 0 })
	want := make([]string, n)
	for i := range want {
		want[i] = strconv.Itoa(i)
	}
	limited, _ := subscribe(t, s.configs["limited"], limitedTopic, fast())
	if got := firsts(t, limited, n); !slices.Equal(got, want) {
		t.Errorf("the queue that was full has had %q, want %q", got, want)
	}
	s.await("the end", allOut)
	if got := s.length(s.queue("free")); got <= n {
		t.Errorf("the other queue has %d messages, want copies beyond %d", got, n)
	}
	free, _ := subscribe(t, s.configs["free"], limitedTopic, fast())
	if got := firsts(t, free, n); !slices.Equal(got, want) {
		t.Errorf("the other queue has had %q, want %q", got, want)
	}
}

// A policy can make a queue drop messages although it was declared to refuse them, without an error. Dropped
// messages go to the dead-letter queue, unless the policy has that drop, too.
func testAFullQueueDrops(t *testing.T, node *rabbittest.Node) {
	const n = 3 * limitedLength
	for name, tt := range map[string]struct {
		prefix, pattern string
		find            func(s *limitedShop, queue, dead string)
	}{
		"into the dead-letter queue": {"drop.", `^drop\..*(?<!\.dead)$`, func(s *limitedShop, queue, dead string) { s.awaitIn(n, queue, dead) }},
		"for good":                   {"lose.", `^lose\.orders\.limited`, func(s *limitedShop, _, dead string) { s.awaitLength(limitedLength, dead) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLimitedShop(t, node, tt.prefix, tt.pattern, `,"overflow":"drop-head"`)
			s.write("k", n)
			s.await("the end", allOut)
			if got := s.length(s.queue("limited")); got != limitedLength {
				t.Errorf("the queue has %d messages, want %d", got, limitedLength)
			}
			tt.find(s, s.queue("limited"), s.queue("limited")+".dead")
			s.replay(n)
		})
	}
}

// awaitLength waits until queue has n messages.
func (s *limitedShop) awaitLength(n int, queue string) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); s.length(queue) != n; <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s has %d messages, want %d", queue, s.length(queue), n)
		}
	}
}

// awaitIn takes what comes out of the queues until it has n different messages. A message whose confirm was late is
// published again, so that there may be more messages than that.
func (s *limitedShop) awaitIn(n int, queues ...string) {
	s.t.Helper()
	ids := map[string]bool{}
	for deadline := time.Now().Add(patience); len(ids) < n; <-time.After(5 * time.Millisecond) {
		for _, queue := range queues {
			for more := true; more; {
				d, ok, err := s.ch.Get(queue, true)
				if err != nil {
					s.t.Fatal(err)
				}
				if more = ok; ok {
					ids[d.MessageId] = true
				}
			}
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d different messages are in %q, want %d", len(ids), queues, n)
		}
	}
}

// replay has everything published again, once the policy is gone.
func (s *limitedShop) replay(n int) {
	s.t.Helper()
	s.node.Ctl(s.t, "clear_policy", s.configs["free"].Exchange.GenerateName(""))
	r, err := operator.NewReplayer(s.pool, &operator.Options{Schema: s.schema})
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := r.ReplayRange(s.t.Context(), operator.ReplayFilter{Since: time.Now().Add(-time.Hour)}, nil)
	if err != nil || p.Replayed != n {
		s.t.Errorf("ReplayRange = %+v, %v; want %d", p, err, n)
	}
	limited, _ := subscribe(s.t, s.configs["limited"], limitedTopic, fast())
	firsts(s.t, limited, n)
}
