package rabbitmq_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// clusterConfig returns settings for a cluster's nodes, with the topology of topics in
// place, and a function after which connections are made to node i alone, or to any if i is -1.
func clusterConfig(t *testing.T, c *rabbitcluster.Cluster, topics ...string) (cfg wamqp.Config, pin func(i int)) {
	t.Helper()
	urls := strings.Join(c.URLs(), ",")
	opts := &rabbitmq.ConfigOptions{Prefix: rabbittest.Name()}
	cfg, err := rabbitmq.NewConfig(urls, service, opts)
	if err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := rabbitmq.DeclareTopology(limited, cfg, topics...); err != nil {
		t.Fatal(err)
	}
	var pinned atomic.Int64
	pinned.Store(-1)
	opts.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if i := int(pinned.Load()); i >= 0 && addr != c.Node(i).Addr() {
			return nil, errors.New("not the node that connections are pinned to")
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	if cfg, err = rabbitmq.NewConfig(urls, service, opts); err != nil {
		t.Fatal(err)
	}
	return cfg, func(i int) { pinned.Store(int64(i)) }
}

// at returns cfg for one node alone.
func at(cfg wamqp.Config, c *rabbitcluster.Cluster, i int) wamqp.Config {
	return through(cfg, c.Node(i).URL())
}

// publishUntil publishes a message to topic at a time until one is taken. None may be
// refused.
func publishUntil(t *testing.T, pub *rabbitmq.Publisher, topic string) (tries int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var err error
	for ; ctx.Err() == nil; tries++ {
		if err = pub.PublishBatch(ctx, batchOf(topic, 1))[0]; err == nil {
			return tries
		}
		if errors.Is(err, outbox.ErrRefused) {
			t.Fatalf("a message is refused while a queue of %s has no leader: %v", topic, err)
		}
	}
	t.Fatalf("no message to %s is taken: %v", topic, err)
	return 0
}

// The behaviour of a Publisher and a Subscriber when nodes of a cluster die, hang, or are cut off.
func TestPrivateBrokerClusterAndItsClients(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	c := rabbittest.StartCluster(t, nil)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *rabbitcluster.Cluster)
	}{
		{"a nack spoils no channel", testNackSpoilsNoChannel},
		{"a queue without a majority", testQueueWithoutMajority},
		{"a queue without a majority is no fault of a node", testStuckQueueIsNoFaultOfANode},
		{"a node that hangs is left", testFrozenNodeIsLeft},
		{"a node that is cut off is left", testCutOffNodeIsLeft},
	} {
		ok := t.Run(tt.name, func(t *testing.T) {
			tt.run(t, c)
			if err := c.AwaitAll(); err != nil {
				t.Fatal(err)
			}
		})
		if !ok {
			return // a node may still be down, and would fail the others
		}
	}
}

// Each channel of a Publisher publishes while the queue's leader dies. All of them get
// through as soon as a new Publisher does, although the dead node stays away: those that
// were nacked are given up.
func testNackSpoilsNoChannel(t *testing.T, c *rabbitcluster.Cluster) {
	cfg, _ := clusterConfig(t, c, "red")
	queue := cfg.Queue.GenerateName("red")
	if err := c.MoveLeader(queue, 2); err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, at(cfg, c, 0), nil)
	mustPublish(t, pub, "red", 1)
	const callers = 4
	var ready, calling sync.WaitGroup
	var nacked atomic.Int64
	elected := make(chan struct{})
	stop := sync.OnceFunc(func() { close(elected) })
	defer stop()
	ready.Add(callers)
	syncNode(t, c, 2)
	for range callers {
		calling.Go(func() {
			ready.Done()
			for open := true; open; {
				select {
				case <-elected:
					open = false
				default:
				}
				if err := pub.PublishBatch(t.Context(), batchOf("red", 1))[0]; errors.Is(err, rabbitmq.ErrNacked) {
					nacked.Add(1)
				} else if errors.Is(err, outbox.ErrRefused) {
					t.Errorf("refused: %v", err)
				}
			}
		})
	}
	ready.Wait()
	c.Kill(2)
	if _, err := c.AwaitLeader(queue); err != nil {
		t.Fatal(err)
	}
	publishUntil(t, newPublisher(t, at(cfg, c, 0), nil), "red")
	stop()
	calling.Wait()
	for range callers {
		calling.Go(func() { publishUntil(t, pub, "red") })
	}
	calling.Wait()
	t.Logf("%d messages were nacked twice", nacked.Load())
	if err := c.Start(2); err != nil {
		t.Fatal(err)
	}
}

// A queue without a majority holds up its messages only, and none of them is refused. The connection and
// other topics go on.
func testQueueWithoutMajority(t *testing.T, c *rabbitcluster.Cluster) {
	cfg, _ := clusterConfig(t, c, "red", "blue")
	red := cfg.Queue.GenerateName("red")
	if err := c.MoveLeader(red, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Shrink(red, 0); err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, at(cfg, c, 0), nil)
	mustPublish(t, pub, "red", 1)
	mustPublish(t, pub, "blue", 1)
	opened := rabbitmq.Opened(pub)
	opened.Enable()
	syncNode(t, c, 2)
	c.Kill(2) // red has two members, and both are needed
	publishUntil(t, pub, "blue")
	for deadline := time.Now().Add(patience); !holdsUpOneTopic(t, pub); {
		if time.Now().After(deadline) {
			t.Fatal("the publisher leaves its node again and again")
		}
	}
	if err := c.Start(2); err != nil {
		t.Fatal(err)
	}
	publishUntil(t, pub, "red")
}

// holdsUpOneTopic publishes to red, whose queue has no majority, and meanwhile to blue. It reports false if the node did
// not answer at all for seconds, as on a machine without time for it: then the publisher left it, and nothing is known.
func holdsUpOneTopic(t *testing.T, pub *rabbitmq.Publisher) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var blue sync.WaitGroup
	var through, silent atomic.Int64
	blue.Go(func() {
		for ctx.Err() == nil {
			err := pub.PublishBatch(t.Context(), batchOf("blue", 1))[0]
			switch {
			case err == nil:
				through.Add(1)
			case errors.Is(err, rabbitmq.ErrUnavailable):
				silent.Add(1)
			default:
				t.Errorf("a message of another topic: %v", err)
			}
		}
	})
	for range 2 {
		for _, err := range pub.PublishBatch(t.Context(), batchOf("red", 2000)) {
			switch {
			case errors.Is(err, rabbitmq.ErrUnavailable):
				silent.Add(1)
			case !errors.Is(err, outbox.ErrDeferred):
				t.Errorf("a message to a queue without a majority: %v, want an ErrDeferred", err)
			}
		}
	}
	cancel()
	blue.Wait()
	return silent.Load() == 0 && through.Load() > 0
}

// A Publisher leaves a node over a queue without a majority. The node is not to blame: a subscription to
// another topic keeps its connection to it, and the message in hand. Confirms from another node do not change
// that, nor does the return of the majority.
func testStuckQueueIsNoFaultOfANode(t *testing.T, c *rabbitcluster.Cluster) {
	cfg, pin := clusterConfig(t, c, "red", "blue")
	red := cfg.Queue.GenerateName("red")
	if err := c.MoveLeader(red, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.Shrink(red, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.MoveLeader(cfg.Queue.GenerateName("blue"), 0); err != nil {
		t.Fatal(err)
	}
	pin(0)
	opts := fast()
	opts.Prefetch = 1 // with a message in hand nothing else is delivered
	blue, sub := subscribe(t, cfg, "blue", opts)
	pub := newPublisher(t, cfg, nil)
	mustPublish(t, pub, "red", 1)
	mustPublish(t, pub, "blue", 1)
	inHand := next(t, blue)
	pin(-1)
	syncNode(t, c, 2)
	c.Kill(2)
	stays := func(when string) {
		t.Helper()
		if at, left := rabbitmq.ConsumesFrom(t, sub); at != c.Node(0).URL() || left {
			t.Errorf("%s: the subscription has left its node", when)
		}
	}
	leaveOver(t, pub, "red", c.Node(0).URL())
	publishUntil(t, pub, "blue")
	if at, _ := rabbitmq.PublishesTo(t, pub); at != c.Node(1).URL() {
		t.Error("the publisher is not on the other node")
	}
	stays("another topic is confirmed on another node")
	if err := c.Start(2); err != nil {
		t.Fatal(err)
	}
	publishUntil(t, pub, "red")
	stays("the topic has its majority back")
	inHand.Ack()
	msg := next(t, blue)
	if msg.UUID == inHand.UUID {
		t.Error("the message in hand came again")
	}
	msg.Ack()
}

// leaveOver publishes to a topic that is not confirmed until pub has left the node of url.
func leaveOver(t *testing.T, pub *rabbitmq.Publisher, topic, url string) {
	t.Helper()
	for deadline := time.Now().Add(2 * patience); ; {
		err := pub.PublishBatch(t.Context(), batchOf(topic, 1))[0]
		if at, left := rabbitmq.PublishesTo(t, pub); at != url || left {
			return
		}
		if err == nil || time.Now().After(deadline) {
			t.Fatalf("the publisher does not leave its node: %v", err)
		}
	}
}

// A node that hangs keeps its connections. A Publisher and a Subscriber find another one.
func testFrozenNodeIsLeft(t *testing.T, c *rabbitcluster.Cluster) {
	service := connectTo(t, c, 0, 1)
	if err := c.Freeze(0); err != nil {
		t.Fatal(err)
	}
	service.exchange(t)
	if err := c.Thaw(0); err != nil {
		t.Fatal(err)
	}
	if err := c.Heal(); err != nil { // others may have given it up
		t.Fatal(err)
	}
}

// A node on the smaller side of a partition answers and confirms nothing, and delivers
// nothing. A Publisher and a Subscriber find one of the other side, a Subscriber with a message
// in hand after its ack.
func testCutOffNodeIsLeft(t *testing.T, c *rabbitcluster.Cluster) {
	idle, busy := connectTo(t, c, 0, 0), connectTo(t, c, 0, 0)
	mustPublish(t, busy.pub, "red", 1)
	inHand := next(t, busy.red)
	c.Partition(0)
	for _, service := range []*redService{idle, busy} {
		if _, err := c.AwaitLeader(service.queue); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	idle.exchange(t)
	t.Logf("left after %v", time.Since(began))
	publishUntil(t, busy.pub, "red")
	if at, left := rabbitmq.ConsumesFrom(t, busy.sub); at != c.Node(0).URL() || left {
		t.Error("a subscription with a message in hand has left its node")
	}
	inHand.Ack()
	next(t, busy.red).Ack()
	if err := c.Heal(); err != nil {
		t.Fatal(err)
	}
}

// A redService publishes to topic red and subscribes to it.
type redService struct {
	pub   *rabbitmq.Publisher
	sub   *rabbitmq.Subscriber
	red   <-chan *message.Message
	queue string
}

// connectTo returns a service whose connections are all to one node, and whose queue has its
// leader on another one or on the same. After it connections are made to any node.
func connectTo(t *testing.T, c *rabbitcluster.Cluster, node, leader int) *redService {
	t.Helper()
	cfg, pin := clusterConfig(t, c, "red")
	s := &redService{queue: cfg.Queue.GenerateName("red")}
	if err := c.MoveLeader(s.queue, leader); err != nil {
		t.Fatal(err)
	}
	pin(node)
	s.pub = newPublisher(t, cfg, nil)
	opts := fast()
	opts.TopologyInterval = time.Hour // an idle subscription is not renewed
	s.red, s.sub = subscribe(t, cfg, "red", opts)
	ackAll(t, s.red, mustPublish(t, s.pub, "red", 1))
	pin(-1)
	return s
}

// exchange publishes until a message is taken, and waits for one that arrives.
func (s *redService) exchange(t *testing.T) {
	t.Helper()
	publishUntil(t, s.pub, "red")
	next(t, s.red).Ack()
}

// syncNode writes what node i keeps in memory, so that its queues outlive a kill.
func syncNode(t *testing.T, c *rabbitcluster.Cluster, i int) {
	t.Helper()
	if err := c.Node(i).Sync(); err != nil {
		t.Fatal(err)
	}
}

// A subscription without a publisher in its process, on a node that is cut off, and a service that starts there. Up to
// RabbitMQ 4.2 such a node pauses; since then it keeps its clients.
func TestPrivateBrokerClusterAndALonelySubscription(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	c := rabbittest.StartCluster(t, &rabbitcluster.Options{Partitions: rabbitcluster.PauseMinority})
	cfg, pin := clusterConfig(t, c, "red")
	queue := cfg.Queue.GenerateName("red")
	if err := c.MoveLeader(queue, 0); err != nil {
		t.Fatal(err)
	}
	pin(0)
	red, _ := subscribe(t, cfg, "red", fast())
	pin(-1)
	pub := newPublisher(t, at(cfg, c, 1), nil)
	ackAll(t, red, mustPublish(t, pub, "red", 1))
	c.Partition(0)
	began := time.Now()
	if _, err := c.AwaitLeader(queue); err != nil {
		t.Fatal(err)
	}
	publishUntil(t, pub, "red")
	t.Logf("the others have a leader after %v", time.Since(began))
	next(t, red).Ack()
	t.Logf("delivered after %v", time.Since(began))
	began = time.Now()
	pin(0) // so the node that is cut off is dialled first
	time.AfterFunc(time.Second, func() { pin(-1) })
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "red"); err != nil {
		t.Fatal(err)
	}
	t.Logf("a service that starts has declared after %v", time.Since(began))
	if err := c.Heal(); err != nil {
		t.Fatal(err)
	}
}
