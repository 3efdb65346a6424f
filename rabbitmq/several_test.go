package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// patientDial is a dial timeout longer than the test, so that no dial ends by its timeout.
var patientDial = rabbitmq.ConnectionOptions{DialTimeout: time.Hour}

// twoNodes returns two proxies in front of the test's broker, which simulate two nodes, and settings for
// both. The first is dialled first.
func twoNodes(t *testing.T, topics ...string) (first, second *rabbittest.Proxy, cfg wamqp.Config) {
	t.Helper()
	first, second = rabbittest.NewProxy(t, rabbittest.URL()), rabbittest.NewProxy(t, rabbittest.URL())
	for _, proxy := range []*rabbittest.Proxy{first, second} {
		proxy.Opened().Enable()
		proxy.Ended().Enable()
	}
	cfg = newConfig(t, first.URL()+", "+second.URL(), topics...)
	if err := rabbitmq.DeclareTopology(t.Context(), through(cfg, rabbittest.URL()), topics...); err != nil {
		t.Fatal(err)
	}
	rabbitmq.Leave(second.URL())
	return first, second, cfg
}

func TestNewConfigOfSeveralAddresses(t *testing.T) {
	t.Parallel()
	const one = "amqp://user:secret@host:5672/vh"
	for _, tt := range []struct{ name, url, fault string }{
		{"two", one + ",amqps://user:secret@other/vh", ""},
		{"blanks", " " + one + " ,\n" + one + " ", ""},
		{"comma in a password", "amqp://user:sec,ret@host/vh,amqp://user:sec,ret@other/vh", ""},
		{"as many as may be", strings.Repeat(one+",", 31) + one, ""},
		{"too many", strings.Repeat(one+",", 32) + one, "33 addresses, the limit is 32"},
		{"the first is wrong", "amqp://user:sec%zzret@host/vh," + one, "address 1 of 2 is not an AMQP URL"},
		{"the last is wrong", one + "," + one + ",amqp://user:secret@host:port/vh", "address 3 of 3 is not an AMQP URL"},
		{"nothing before a comma", "," + one, "address 1 of 2 is empty"},
		{"nothing behind a comma", one + ",", "the virtual host of address 1 of 1 contains a comma"},
		{"nothing between commas", one + ",," + one, "the virtual host of address 1 of 2 contains a comma"},
		{"another separator", one + ";" + one, "the virtual host of address 1 of 1 contains a comma, a semicolon"},
		{"a comma in a virtual host", "amqp://user:secret@host/v%2Ch," + "amqp://user:secret@other/v%2Ch", ""},
		{"another virtual host", one + ",amqp://user:secret@host/", "address 2 of 2 has another virtual host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, err := rabbitmq.NewConfig(tt.url, service, nil)
			if tt.fault == "" && err == nil {
				_, err = rabbitmq.NewPublisher(cfg, nil)
			}
			check := func(of string, err error) {
				if (tt.fault == "") != (err == nil) || err != nil && (!errors.Is(err, rabbitmq.ErrConfig) || !strings.Contains(err.Error(), tt.fault) || strings.Contains(err.Error(), "sec")) {
					t.Errorf("%s = %v, want %q, without the password", of, err, tt.fault)
				}
			}
			check("NewConfig", err)
			_, err = rabbitmq.NewPublisher(through(newConfig(t, rabbittest.URL()), tt.url), nil)
			check("NewPublisher", err)
		})
	}
}

func TestADeadBrokerIsPassedOver(t *testing.T) {
	t.Parallel()
	_, absent := unreachable(t)
	cfg := newConfig(t, absent+","+rabbittest.URL(), "orders")
	rabbitmq.Leave(rabbittest.URL())
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "orders"); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mustPublish(t, pub, "orders", 1) // the first call, in which one round is dialled
	if url, _ := rabbitmq.PublishesTo(t, pub); url != rabbittest.URL() {
		t.Error("the publisher has not gone to the broker that is there")
	}
	pub.Close()
	place := absent[strings.LastIndexByte(absent, '@')+1:]
	place, _, _ = strings.Cut(place, "/")
	if text := log.String(); !strings.Contains(text, "level=WARN msg=\"rabbitmq: a broker cannot be reached") || !strings.Contains(text, place) {
		t.Errorf("the log has %q, want a warning that names %s", text, place)
	}
}

// A broker that has lost a connection is not the first to be dialled for the next one.
func TestALostConnectionIsFollowedByOneToAnotherBroker(t *testing.T) {
	t.Parallel()
	first, second, cfg := twoNodes(t, "orders")
	pub := newPublisher(t, cfg, nil)
	mustPublish(t, pub, "orders", 1)
	first.Cut()
	err := pub.Publish("orders", newMessage("x"))
	for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
		err = pub.Publish("orders", newMessage("x"))
	}
	if at, left := rabbitmq.PublishesTo(t, pub); err != nil || at != second.URL() || left {
		t.Errorf("Publish = %v, the broker left: %t; want nil, and the second broker", err, left)
	}
}

// A broker that accepts a connection and never answers does not hold up the others. The superfluous dial
// ends.
func TestABlackHoleIsDialledAround(t *testing.T) {
	t.Parallel()
	hole, _, cfg := twoNodes(t, "orders")
	hole.Stall(true)
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Connection: patientDial})
	within(t, "Publish", func() { mustPublish(t, pub, "orders", 1) })
	hole.Opened().Wait(t)
	hole.Ended().Wait(t)
}

// Close ends a round of dials, and waits for each.
func TestCloseDuringARound(t *testing.T) {
	t.Parallel()
	first, second, cfg := twoNodes(t, "orders")
	first.Stall(true)
	second.Stall(true)
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Connection: patientDial})
	done := make(chan error)
	go func() { done <- pub.Publish("orders", newMessage("x")) }()
	first.Opened().Wait(t)
	second.Opened().Wait(t)
	within(t, "Close", func() { pub.Close() })
	if err := <-done; !errors.Is(err, rabbitmq.ErrClosed) || !errors.Is(err, rabbitmq.ErrUnavailable) {
		t.Errorf("Publish = %v, want ErrClosed and ErrUnavailable", err)
	}
	first.Ended().Wait(t)
	second.Ended().Wait(t)
}

// Close waits for a dial that has lost the race and knows no context.
func TestCloseWaitsForALateDial(t *testing.T) {
	t.Parallel()
	first, second, cfg := twoNodes(t, "orders")
	at, err := url.Parse(first.URL())
	if err != nil {
		t.Fatal(err)
	}
	release, returned := make(chan struct{}), make(chan struct{})
	cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		if addr == at.Host {
			<-release
			defer close(returned)
		}
		return net.Dial(network, addr)
	}}
	pub := newPublisher(t, cfg, nil)
	mustPublish(t, pub, "orders", 1)
	second.Opened().Wait(t)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pub.Close()
	}()
	second.Ended().Wait(t) // Close is at work
	select {
	case <-closed:
		t.Error("Close has returned, and a dial goes on")
	default:
	}
	close(release)
	<-returned
	within(t, "Close", func() { <-closed })
	first.Ended().Wait(t) // what was dialled is closed
}

// A node that dies under load: the other one takes over, and nothing that was published is
// lost.
func TestANodeDiesUnderLoad(t *testing.T) {
	t.Parallel()
	first, second, cfg := twoNodes(t, "orders")
	messages, sub := subscribe(t, cfg, "orders", fast())
	pub := newPublisher(t, cfg, nil)
	ids := mustPublish(t, pub, "orders", 100)
	for _, proxied := range []func() (string, bool){
		func() (string, bool) { return rabbitmq.PublishesTo(t, pub) }, func() (string, bool) { return rabbitmq.ConsumesFrom(t, sub) },
	} {
		if at, _ := proxied(); at != first.URL() {
			t.Fatal("the first broker is not used")
		}
	}
	next(t, messages).Nack() // and one is in hand when it happens
	inHand := next(t, messages)
	first.Refuse(true)
	batch := batchOf("orders", 100)
	results := pub.PublishBatch(t.Context(), batch)
	for i, err := range results {
		for deadline := time.Now().Add(patience); errors.Is(err, rabbitmq.ErrUnavailable) && time.Now().Before(deadline); {
			err = pub.PublishBatch(t.Context(), batch[i:i+1])[0]
		}
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		ids[batch[i].Message.UUID] = true
	}
	inHand.Ack() // too late: it comes again
	ackAll(t, messages, ids)
	if at, left := rabbitmq.ConsumesFrom(t, sub); at != second.URL() || left {
		t.Errorf("the subscription is left: %t, want it on the second broker", left)
	}
}

// Several wrong passwords are one error, which names each login once; one broker that knows
// us is enough.
func TestAWrongPasswordAtSomeAddresses(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	first, second, cfg := twoNodes(t, "orders")
	wrong := func(p *rabbittest.Proxy) string {
		u, err := url.Parse(p.URL())
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(u.User.Username(), "wrong-secret")
		return u.String()
	}
	all := newConfig(t, wrong(first)+","+wrong(second))
	err := rabbitmq.DeclareTopology(t.Context(), all, "orders")
	for _, proxy := range []*rabbittest.Proxy{first, second} {
		parts, _ := whoseLogin(t, proxy.URL())
		checkLogin(t, err, parts, "wrong-secret")
		if err != nil && strings.Count(err.Error(), parts[0]) != 1 {
			t.Errorf("the error names %s not just once: %v", parts[0], err)
		}
	}
	some := through(cfg, wrong(first)+","+second.URL())
	rabbitmq.Leave(second.URL())
	mustPublish(t, newPublisher(t, some, nil), "orders", 1)
}

// The Dial of the options connects to each address, until its context ends.
func TestDialOfTheOptions(t *testing.T) {
	t.Parallel()
	const prefix = "amqp://guest:guest@"
	var (
		mu    sync.Mutex
		addrs []string
	)
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		addrs = append(addrs, addr)
		mu.Unlock()
		if _, limited := ctx.Deadline(); !limited || network != "tcp" {
			t.Errorf("Dial of %s with a deadline: %t; want tcp and one", network, limited)
		}
		if addr == "frozen.example:5672" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, errors.New("no way to " + addr)
	}
	cfg, err := rabbitmq.NewConfig(prefix+"frozen.example,"+prefix+"mq.example:1", service, &rabbitmq.ConfigOptions{Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Connection: rabbitmq.ConnectionOptions{DialTimeout: time.Second}})
	err = pub.Publish("orders", newMessage("x"))
	if !errors.Is(err, rabbitmq.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no way to mq.example:1") {
		t.Errorf("Publish = %v, want what each Dial has said", err)
	}
	if slices.Sort(addrs); !slices.Equal(addrs, []string{"frozen.example:5672", "mq.example:1"}) {
		t.Errorf("Dial was called for %q, want each address once", addrs)
	}
}

// A Config that is not of NewConfig may name several addresses as well.
func TestSeveralAddressesInAWatermillConfig(t *testing.T) {
	t.Parallel()
	name := rabbittest.Name()
	rabbittest.Delete(t, []string{name + "q_svc"}, []string{name + "q"})
	_, absent := unreachable(t)
	cfg := wamqp.NewDurablePubSubConfig(absent+","+rabbittest.URL(), wamqp.GenerateQueueNameTopicNameWithSuffix("svc"))
	var mu sync.Mutex
	dialled := map[string]bool{}
	cfg.Connection.AmqpConfig = &amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialled[addr] = true
		return net.Dial(network, addr)
	}}
	messages, _ := subscribe(t, cfg, name+"q", fast())
	ackAll(t, messages, mustPublish(t, newPublisher(t, cfg, nil), name+"q", 3))
	at, err := url.Parse(rabbittest.URL())
	if mu.Lock(); err != nil || !dialled[at.Host] {
		t.Errorf("the amqp.Config's Dial was called for %v", dialled)
	}
	mu.Unlock()
}

// A broker that has not confirmed a message loses the subscriptions on which nothing comes any
// more, once another broker has confirmed one to the same topic. The one that is served stays,
// and so does the one that was dialled later.
func TestASuspectIsLeft(t *testing.T) {
	t.Parallel()
	first, second, cfg := twoNodes(t, "idle", "elsewhere", "busy", "late", "orders", "other")
	_, elsewhere := subscribe(t, through(cfg, second.URL()+","+second.URL()), "elsewhere", fast())
	idle, idler := subscribe(t, cfg, "idle", fast())
	busy, worker := subscribe(t, cfg, "busy", fast())
	var log bytes.Buffer
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mustPublish(t, pub, "orders", 1)
	direct := newPublisher(t, through(cfg, rabbittest.URL()), nil) // past the brokers
	ackAll(t, idle, mustPublish(t, direct, "idle", 1))             // before

	stays := func(when string, of *rabbitmq.Subscriber, want string) {
		t.Helper()
		if at, left := rabbitmq.ConsumesFrom(t, of); at != want || left {
			t.Errorf("%s: the subscription has left its broker: %t", when, left)
		}
	}
	rabbitmq.LeaveUnconfirmed(t, pub, "orders")
	first.Ended().Wait(t)
	ackAll(t, busy, mustPublish(t, direct, "busy", 1))
	_, late := subscribe(t, through(cfg, first.URL()+","+first.URL()), "late", fast())
	mustPublish(t, pub, "other", 1)
	if at, left := rabbitmq.PublishesTo(t, pub); at != second.URL() || left {
		t.Errorf("the publisher has left its broker: %t, want it on the second", left)
	}
	stays("another topic is confirmed", idler, first.URL())
	mustPublish(t, pub, "orders", 1)
	first.Ended().Wait(t) // a while after the last ack
	stays("the busy one", worker, first.URL())
	stays("the one dialled later", late, first.URL())
	stays("one of the broker that has confirmed", elsewhere, second.URL())
	ackAll(t, idle, mustPublish(t, direct, "idle", 1)) // on the other broker
	stays("the idle one", idler, second.URL())
	if text := log.String(); !strings.Contains(text, "it has not confirmed a message to exchange") || !strings.Contains(text, cfg.Exchange.GenerateName("orders")) {
		t.Errorf("the log has %q, want the exchange that was not confirmed", text)
	}
}

// A publisher leaves a broker that an alarm blocks for another one that takes messages.
func TestPrivateBrokerBlockedIsLeft(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	node := rabbittest.StartNode(t)
	proxy := rabbittest.NewProxy(t, rabbittest.URL()) // whose user and virtual host are the node's
	cfg := newConfig(t, node.URL()+","+proxy.URL(), "orders")
	for _, url := range []string{node.URL(), rabbittest.URL()} {
		if err := rabbitmq.DeclareTopology(t.Context(), through(cfg, url), "orders"); err != nil {
			t.Fatal(err)
		}
	}
	rabbitmq.Leave(proxy.URL())
	pub := newPublisher(t, cfg, nil)
	mustPublish(t, pub, "orders", 1)
	if at, _ := rabbitmq.PublishesTo(t, pub); at != node.URL() {
		t.Fatal("the first broker is not used")
	}
	node.Block(t)
	msg := newMessage("x")
	err := pub.Publish("orders", msg)
	if err != nil && (!errors.Is(err, rabbitmq.ErrBlocked) && !errors.Is(err, rabbitmq.ErrUnavailable) || errors.Is(err, outbox.ErrRefused)) {
		t.Errorf("Publish while blocked = %v, want ErrBlocked", err)
	}
	at, left := rabbitmq.PublishesTo(t, pub)
	// The alarm may reach the connection after the first message.
	for deadline := time.Now().Add(patience); err != nil || at == node.URL(); at, left = rabbitmq.PublishesTo(t, pub) {
		if time.Now().After(deadline) {
			t.Fatalf("Publish with another broker: %v, at %s", err, at)
		}
		err = pub.Publish("orders", msg)
	}
	if at != proxy.URL() || left {
		t.Errorf("the publisher has left its broker: %t, want it on the one that is not blocked", left)
	}
}
