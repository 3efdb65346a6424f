package rabbitcluster_test

import (
	"crypto/tls"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/certtest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// queue is the quorum queue of the test.
const queue = "q"

// TestPrivateBrokerCluster is one test with steps, since a cluster takes ten seconds to start.
func TestPrivateBrokerCluster(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	authority := certtest.NewAuthority(t)
	certificate, key := authority.Issue(t, time.Hour)
	c := rabbittest.StartCluster(t, &rabbitcluster.Options{Partitions: rabbitcluster.PauseMinority, Certificate: certificate, Key: key})
	for _, n := range c.Nodes() {
		connection, err := amqp.DialTLS(n.TLSURL(), &tls.Config{RootCAs: authority.Pool()})
		check(t, err)
		check(t, connection.Close())
	}
	declareQueue(t, c)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *rabbitcluster.Cluster)
	}{
		{"members are added and removed", resize},
		{"an alarm of one node blocks all", raiseAlarms},
		{"a policy is for all nodes", setPolicy},
		{"another node leads when the leader is killed", killLeader},
		{"a minority confirms nothing", partition},
		{"nodes notice a cut of one direction", cutOneWay},
		{"another node leads when the leader freezes", freezeLeader},
		{"a broker stops without its node", stopApp},
		{"a node restarts in good order", restart},
		{"messages outlive a kill of all nodes", killAll},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c) }) {
			return
		}
	}
}

// check fails the test for an error of the cluster.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leaderOf is the queue's leader, once it has one.
func leaderOf(t *testing.T, c *rabbitcluster.Cluster) int {
	t.Helper()
	leader, err := c.AwaitLeader(queue)
	check(t, err)
	return leader
}

// confirming opens a channel with confirms on node i.
func confirming(t *testing.T, c *rabbitcluster.Cluster, i int) *amqp.Channel {
	t.Helper()
	ch := rabbittest.Channel(t, c.Node(i).URL())
	check(t, ch.Confirm(false))
	return ch
}

// send publishes a message to the queue.
func send(t *testing.T, ch *amqp.Channel) *amqp.DeferredConfirmation {
	t.Helper()
	sent, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("m")})
	check(t, err)
	return sent
}

// confirm publishes on new channels of node i until a message is confirmed. A refusal says
// nothing: a channel sends its first message to the leader that the node's tables name,
// which may be the one before, and then refuses all.
func confirm(t *testing.T, c *rabbitcluster.Cluster, i int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		sent := send(t, confirming(t, c, i))
		select {
		case <-sent.Done():
		case <-time.After(time.Until(deadline)):
			t.Fatalf("node %d neither confirms nor refuses a message", i)
		}
		if sent.Acked() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %d refuses messages", i)
		}
	}
}

// others are the nodes but one.
func others(i int) (a, b int) { return (i + 1) % rabbitcluster.Size, (i + 2) % rabbitcluster.Size }

func declareQueue(t *testing.T, c *rabbitcluster.Cluster) {
	t.Helper()
	_, err := rabbittest.Channel(t, c.URLs()[1]).QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	check(t, err)
	leaderOf(t, c)
	members, err := c.Members(queue)
	check(t, err)
	if !slices.Equal(members, []int{0, 1, 2}) {
		t.Fatalf("members = %v, want all nodes", members)
	}
	for i, n := range c.Nodes() {
		handling, err := n.Eval("{ok,H}=application:get_env(rabbit,cluster_partition_handling),H")
		check(t, err)
		if handling != rabbitcluster.PauseMinority {
			t.Errorf("node %d: partition handling is %s, want %s", i, handling, rabbitcluster.PauseMinority)
		}
		check(t, n.Sync())
	}
}

func resize(t *testing.T, c *rabbitcluster.Cluster) {
	for i := range c.Nodes() {
		check(t, c.MoveLeader(queue, i))
		if leader := leaderOf(t, c); leader != i {
			t.Fatalf("leader = %d, want %d", leader, i)
		}
	}
	check(t, c.Shrink(queue, 0))
	members, err := c.Members(queue)
	check(t, err)
	if !slices.Equal(members, []int{1, 2}) {
		t.Fatalf("members after Shrink = %v, want 1 and 2", members)
	}
	confirm(t, c, 0)
	check(t, c.Grow(queue, 0))
	members, err = c.Members(queue)
	check(t, err)
	if !slices.Equal(members, []int{0, 1, 2}) {
		t.Fatalf("members after Grow = %v, want all nodes", members)
	}
	for _, n := range c.Nodes() {
		check(t, n.Sync())
	}
}

func raiseAlarms(t *testing.T, c *rabbitcluster.Cluster) {
	connection, err := amqp.Dial(c.URLs()[0])
	check(t, err)
	defer func() { _ = connection.CloseDeadline(time.Now().Add(time.Second)) }() // a blocked broker does not answer
	blocked := connection.NotifyBlocked(make(chan amqp.Blocking, 4))
	ch, err := connection.Channel()
	check(t, err)
	check(t, ch.Confirm(false))
	for _, alarm := range []struct {
		name     string
		set, end func(int) error
	}{{"memory", c.Block, c.Unblock}, {"disk", c.FillDisk, c.FreeDisk}} {
		check(t, alarm.set(1))
		send(t, ch)
		awaitBlocked(t, alarm.name, blocked, true)
		check(t, alarm.end(1))
		awaitBlocked(t, alarm.name, blocked, false)
	}
}

// awaitBlocked returns when the broker has blocked its clients, or unblocked them.
func awaitBlocked(t *testing.T, alarm string, blocked <-chan amqp.Blocking, want bool) {
	t.Helper()
	select {
	case got := <-blocked:
		if got.Active != want {
			t.Fatalf("%s: blocked = %t, want %t", alarm, got.Active, want)
		}
	case <-time.After(patience):
		t.Fatalf("%s: the broker does not say that blocked is %t", alarm, want)
	}
}

func setPolicy(t *testing.T, c *rabbitcluster.Cluster) {
	check(t, c.SetPolicy("few", "^"+queue+"$", `{"delivery-limit":7}`))
	out, err := c.Node(2).Eval(`{ok,Q}=rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>,queue,<<"` + queue + `">>)),rabbit_policy:get(<<"delivery-limit">>,Q)`)
	check(t, err)
	if out != "7" {
		t.Errorf("delivery limit on another node = %s, want 7", out)
	}
}

func killLeader(t *testing.T, c *rabbitcluster.Cluster) {
	old := leaderOf(t, c)
	survivor, other := others(old)
	c.Kill(old)
	if leader := leaderOf(t, c); leader == old {
		t.Fatalf("node %d leads, and is killed", old)
	}
	confirm(t, c, survivor)
	check(t, c.AwaitView(survivor, survivor, other))
	check(t, c.Start(old))
	check(t, c.AwaitAll())
	confirm(t, c, old)
}

func partition(t *testing.T, c *rabbitcluster.Cluster) {
	cut := leaderOf(t, c)
	survivor, _ := others(cut)
	minority := confirming(t, c, cut)
	c.Partition(cut)
	sent := send(t, minority)
	check(t, c.AwaitCuts())
	if leader := leaderOf(t, c); leader == cut {
		t.Fatalf("node %d leads, and no other node hears it", cut)
	}
	confirm(t, c, survivor)
	select {
	case <-sent.Done():
		if sent.Acked() {
			t.Fatal("a leader without followers confirms a message")
		}
	default:
	}
	pauses, err := c.HandlesPartitions(survivor)
	check(t, err)
	if pauses {
		check(t, c.AwaitBroker(cut, false))
	}
	check(t, c.Heal())
	confirm(t, c, cut)
}

func cutOneWay(t *testing.T, c *rabbitcluster.Cluster) {
	for _, n := range c.Nodes() { // as most clusters are: an operator heals them
		_, err := n.Eval("application:set_env(rabbit,cluster_partition_handling,ignore)")
		check(t, err)
	}
	leader := leaderOf(t, c)
	from, to := others(leader)
	c.CutOneWay(from, to)
	check(t, c.AwaitCuts())
	for deadline := time.Now().Add(patience); ; {
		seen, err := c.Seen(to)
		check(t, err)
		if !slices.Contains(seen, from) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %d sees %v, and hears nothing from node %d", to, seen, from)
		}
	}
	leaderOf(t, c)
	confirm(t, c, leader)
	check(t, c.Heal())
	for i := range c.Nodes() {
		parted, err := c.Partitions(i)
		check(t, err)
		if len(parted) > 0 {
			t.Errorf("node %d is parted from %v after Heal", i, parted)
		}
		confirm(t, c, i)
	}
}

func freezeLeader(t *testing.T, c *rabbitcluster.Cluster) {
	old := leaderOf(t, c)
	survivor, other := others(old)
	check(t, c.Freeze(old))
	check(t, c.AwaitCuts())
	check(t, c.AwaitView(survivor, survivor, other))
	if leader := leaderOf(t, c); leader == old {
		t.Fatalf("node %d leads, and is frozen", old)
	}
	confirm(t, c, survivor)
	check(t, c.Thaw(old))
	check(t, c.Heal())
	confirm(t, c, old)
}

func stopApp(t *testing.T, c *rabbitcluster.Cluster) {
	old := leaderOf(t, c)
	survivor, _ := others(old)
	check(t, c.StopApp(old))
	if leader := leaderOf(t, c); leader == old {
		t.Fatalf("node %d leads, and its broker is stopped", old)
	}
	confirm(t, c, survivor)
	check(t, c.StartApp(old))
	check(t, c.AwaitAll())
}

func restart(t *testing.T, c *rabbitcluster.Cluster) {
	before, err := c.Node(1).Eval("os:getpid()")
	check(t, err)
	check(t, c.Restart(1))
	check(t, c.AwaitAll())
	after, err := c.Node(1).Eval("os:getpid()")
	check(t, err)
	if after == before {
		t.Errorf("the node has process %s after Restart, as before", after)
	}
}

func killAll(t *testing.T, c *rabbitcluster.Cluster) {
	_, err := rabbittest.Channel(t, c.URLs()[0]).QueuePurge(queue, false)
	check(t, err)
	confirm(t, c, 0)
	confirm(t, c, 1)
	c.KillAll()
	check(t, c.StartAll())
	leaderOf(t, c)
	ch := rabbittest.Channel(t, c.URLs()[2])
	for i := range 2 {
		if _, found, err := ch.Get(queue, true); !found || err != nil {
			t.Fatalf("message %d of 2 after the kill: found = %t, %v", i+1, found, err)
		}
	}
}
