package rabbitmq_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// outagePatience is how long a test waits for an effect of several tries. RabbitMQ answers each after nine
// seconds or more.
const outagePatience = 2 * time.Minute

// A diary counts what a Subscriber logs about a topic, by message.
type diary struct {
	mu    sync.Mutex
	lines map[string]int // topic and message
}

func newDiary() *diary { return &diary{lines: map[string]int{}} }

func (*diary) Enabled(context.Context, slog.Level) bool { return true }
func (d *diary) WithAttrs([]slog.Attr) slog.Handler     { return d }
func (d *diary) WithGroup(string) slog.Handler          { return d }

func (d *diary) Handle(_ context.Context, r slog.Record) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "topic" {
			d.lines[a.Value.String()+": "+r.Message]++
		}
		return a.Key != "topic"
	})
	return nil
}

func (d *diary) count(topic, text string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lines[topic+": "+text]
}

// The texts that a diary counts.
const (
	triedAgain = "rabbitmq: cannot reach topic, trying again"
	lost       = "rabbitmq: subscription lost"
)

// A listener is a service that listens to red and blue.
type listener struct {
	cfg       wamqp.Config
	sub       *rabbitmq.Subscriber
	diary     *diary
	red, blue <-chan *message.Message
}

// newListener declares the queues of a service; that of red gets members on the nodes 0 and 1.
func newListener(t *testing.T, c *rabbitcluster.Cluster, name string) *listener {
	t.Helper()
	cfg, err := rabbitmq.NewConfig(c.Node(0).URL(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "red", "blue"); err != nil {
		t.Fatal(err)
	}
	queue := cfg.Queue.GenerateName("red")
	if err := c.MoveLeader(queue, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Shrink(queue, 2); err != nil {
		t.Fatal(err)
	}
	if members, err := c.Members(queue); err != nil || len(members) != 2 {
		t.Fatalf("%s has the members %v, %v", queue, members, err)
	}
	l := &listener{cfg: cfg, diary: newDiary()}
	opts := fast()
	opts.TopologyInterval, opts.Logger = time.Second, slog.New(l.diary) // red is soon idle, and renewed
	if l.sub, err = rabbitmq.NewSubscriber(cfg, opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.sub.Close() })
	return l
}

// subscribe subscribes to red first.
func (l *listener) subscribe(t *testing.T) {
	t.Helper()
	var err error
	if l.red, err = l.sub.Subscribe(context.Background(), "red"); err == nil {
		l.blue, err = l.sub.Subscribe(context.Background(), "blue")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A queue without a majority costs its own topic only, whether it was consumed before or is
// subscribed to now, and its messages arrive once it has one again. RabbitMQ answers
// basic.consume and basic.cancel with an exception that closes the connection.
func TestPrivateBrokerQueueWithoutMajorityCostsNoOtherTopic(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	c := rabbittest.StartCluster(t, nil)
	early, late := newListener(t, c, "early"), newListener(t, c, "late")
	pub := newPublisher(t, early.cfg, nil)
	early.subscribe(t)
	ackAll(t, early.red, mustPublish(t, pub, "red", 1))
	if err := c.Node(1).Sync(); err != nil {
		t.Fatal(err)
	}
	c.Kill(1)
	late.subscribe(t) // returns, although red does not answer
	listeners := []*listener{early, late}
	exchangeUntil(t, pub, listeners, func() bool {
		return early.diary.count("red", triedAgain) >= 2 && late.diary.count("red", triedAgain) >= 2
	})
	for _, l := range listeners {
		if n := l.diary.count("blue", lost) + l.diary.count("blue", triedAgain); n > 0 {
			t.Errorf("the subscription to blue was lost %d times: %v", n, l.diary.lines)
		}
		if served, _ := l.sub.Subscription("red"); served {
			t.Error("the subscription to red counts as served")
		}
	}
	if err := c.Start(1); err != nil {
		t.Fatal(err)
	}
	exchangeUntil(t, pub, listeners, func() bool {
		one, _ := early.sub.Subscription("red")
		other, _ := late.sub.Subscription("red")
		return one && other
	})
	next(t, late.red).Ack() // from before the outage
	ids := mustPublish(t, pub, "red", 3)
	for _, l := range listeners {
		ackAll(t, l.red, map[string]bool{firstOf(ids): true})
	}
}

// exchangeUntil sends messages to blue and waits for each, and that blue is served, until
// condition holds.
func exchangeUntil(t *testing.T, pub *rabbitmq.Publisher, listeners []*listener, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(outagePatience); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come to that: %v, %v", listeners[0].diary.lines, listeners[1].diary.lines)
		}
		id := firstOf(mustPublish(t, pub, "blue", 1))
		for i, l := range listeners {
			ackAll(t, l.blue, map[string]bool{id: true})
			if served, _ := l.sub.Subscription("blue"); !served {
				t.Fatalf("listener %d: blue is not served", i)
			}
		}
	}
}

func firstOf(ids map[string]bool) string {
	for id := range ids {
		return id
	}
	return ""
}
