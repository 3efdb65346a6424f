package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/pgtest"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/rabbitnode"
	"github.com/sagamill/sagamill/internal/rabbittest"
	"github.com/sagamill/sagamill/internal/strictjson"
	"github.com/sagamill/sagamill/rabbitmq"
)

// password is that of every user of the tests.
const password = "hunter2"

// maxMessage is the max_message_size of the tests' broker, in bytes.
const maxMessage = 64 << 10

// topology is what the services of this example publish and listen to.
func topology() rabbitmq.Topology {
	t := rabbitmq.Topology{Prefix: defaultNamespace + "."}
	for _, service := range slices.Sorted(maps.Keys(listens)) {
		t.Services = append(t.Services, rabbitmq.Service{Name: service, Publishes: publishes[service], Listens: listens[service]})
	}
	return t
}

// The file that an operator gives to sagamill broker says what the programs do.
func TestTopologyFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("topology.json")
	if err != nil {
		t.Fatal(err)
	}
	var file rabbitmq.Topology
	if err := strictjson.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(topology(), file); d != "" {
		t.Errorf("topology.json (+) is not what the services do (-):\n%s", d)
	}
}

// An intruder is a user of the broker who tries what is not his.
type intruder struct {
	t    *testing.T
	conn *amqp091.Connection
	user string
}

// as returns the node's URL for user.
func as(node *rabbittest.Node, user string) string {
	u, err := url.Parse(node.URL())
	if err != nil {
		panic(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

func newIntruder(t *testing.T, node *rabbittest.Node, user string) *intruder {
	t.Helper()
	conn, err := amqp091.Dial(as(node, user))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &intruder{t, conn, user}
}

// try expects want of act: 0 is success, all else the code of the exception with which
// the broker closes the channel.
func (i *intruder) try(want int, what string, act func(*amqp091.Channel) error) {
	i.t.Helper()
	ch, err := i.conn.Channel()
	if err != nil {
		i.t.Fatal(err)
	}
	defer ch.Close()
	got := 0
	var e *amqp091.Error
	switch err := act(ch); {
	case errors.As(err, &e):
		got = e.Code
	case err != nil:
		i.t.Fatalf("%s: %s: %v", i.user, what, err)
	}
	if got != want {
		i.t.Errorf("%s: %s = %d, want %d", i.user, what, got, want)
	}
}

// publish returns how the broker answers for a message. An exception comes instead of
// a confirm.
func publish(exchange, key string, msg amqp091.Publishing) func(*amqp091.Channel) error {
	return func(ch *amqp091.Channel) error {
		closes := ch.NotifyClose(make(chan *amqp091.Error, 1))
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, 1))
		if err := ch.PublishWithContext(context.Background(), exchange, key, true, false, msg); err != nil {
			return err
		}
		select {
		case e := <-closes:
			return e
		case c, open := <-confirms:
			if !open {
				return <-closes
			}
			if !c.Ack {
				return errors.New("nacked")
			}
			return nil
		case <-time.After(time.Minute):
			return errors.New("no answer")
		}
	}
}

func consume(queue string) func(*amqp091.Channel) error {
	return func(ch *amqp091.Channel) error {
		_, err := ch.Consume(queue, "", false, false, false, false, nil)
		return err
	}
}

// newRestrictedNode starts a broker on which there are users for the services of t, and
// the topology, declared by a user who may nothing else.
func newRestrictedNode(t *testing.T, of rabbitmq.Topology) *rabbittest.Node {
	t.Helper()
	node := rabbittest.StartNodeWith(t, &rabbitnode.Options{Config: fmt.Sprintf("max_message_size = %d", maxMessage)})
	all, err := of.Permissions()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		node.CtlWith(t, password+"\n", "add_user", p.User)
		node.Ctl(t, "set_permissions", "--vhost", "/", p.User, p.Configure, p.Write, p.Read)
		node.Ctl(t, "set_user_limits", p.User, fmt.Sprintf(`{"max-connections":%d,"max-channels":%d}`, p.MaxConnections, p.MaxChannels))
	}
	for _, s := range of.Services {
		cfg, err := rabbitmq.NewConfig(as(node, of.Prefix+rabbitmq.DeployUser), s.Name, &rabbitmq.ConfigOptions{Prefix: of.Prefix})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a deployment is repeated
			if err := rabbitmq.DeclareTopology(t.Context(), cfg, s.Listens...); err != nil {
				t.Fatalf("the user of the deployment cannot declare for %s: %v", s.Name, err)
			}
		}
	}
	return node
}

// TestBrokerPermissions has a broker with a user for each service: all that is its own
// works, and everything else is refused.
func TestBrokerPermissions(t *testing.T) {
	t.Parallel()
	of := topology()
	node := newRestrictedNode(t, of)
	t.Run("as a service", func(t *testing.T) {
		for _, s := range of.Services {
			t.Run(s.Name, func(t *testing.T) { t.Parallel(); testForgery(t, node, of, s) })
		}
		t.Run("through the library", func(t *testing.T) { t.Parallel(); testForgeryByPublisher(t, node, of) })
	})
	ch := rabbittest.Channel(t, node.URL())
	for _, s := range of.Services {
		for _, topic := range s.Listens {
			if _, err := ch.QueuePurge(of.Prefix+topic+"."+s.Name, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("sagas", func(t *testing.T) { testRestrictedSagas(t, node) })
	t.Run("limits", func(t *testing.T) { testLimits(t, node) })
}

func testForgery(t *testing.T, node *rabbittest.Node, of rabbitmq.Topology, self rabbitmq.Service) {
	user := of.Prefix + self.Name
	i := newIntruder(t, node, user)
	code := func(own bool) int {
		if own {
			return 0
		}
		return amqp091.AccessRefused
	}
	exchanges := map[string]bool{}
	for _, s := range of.Services {
		for _, topic := range s.Listens {
			exchange := of.Prefix + topic
			queue := exchange + "." + s.Name
			exchanges[topic] = true
			mine := s.Name == self.Name
			i.try(code(mine), "consume from "+queue, consume(queue))
			i.try(code(mine), "get from "+queue, func(ch *amqp091.Channel) error { _, _, err := ch.Get(queue, false); return err })
			i.try(code(mine), "purge "+queue, func(ch *amqp091.Channel) error { _, err := ch.QueuePurge(queue, false); return err })
			i.try(code(false), "delete "+queue, func(ch *amqp091.Channel) error { _, err := ch.QueueDelete(queue, false, false, false); return err })
			i.try(code(false), "declare "+queue, func(ch *amqp091.Channel) error {
				_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
				return err
			})
			i.try(0, "look for "+queue, func(ch *amqp091.Channel) error {
				_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
				return err
			})
			i.try(code(false), "bind "+queue, func(ch *amqp091.Channel) error { return ch.QueueBind(queue, "", exchange, false, nil) })
			i.try(code(false), "unbind "+queue, func(ch *amqp091.Channel) error { return ch.QueueUnbind(queue, "", exchange, nil) })
			i.try(code(false), "consume from "+queue+".dead", consume(queue+".dead"))
			i.try(code(false), "purge "+queue+".dead", func(ch *amqp091.Channel) error { _, err := ch.QueuePurge(queue+".dead", false); return err })
			i.try(code(false), "publish to "+queue+" by the default exchange", publish("", queue, amqp091.Publishing{}))
		}
	}
	for topic := range exchanges {
		exchange := of.Prefix + topic
		mine := slices.Contains(self.Publishes, topic)
		i.try(code(mine), "publish to "+exchange, publish(exchange, "", amqp091.Publishing{}))
		i.try(code(mine), "publish to "+exchange+" under its name", publish(exchange, "", amqp091.Publishing{UserId: user}))
		want := amqp091.PreconditionFailed
		if !mine {
			want = amqp091.AccessRefused
		}
		i.try(want, "publish to "+exchange+" under another name", publish(exchange, "", amqp091.Publishing{UserId: of.Prefix + rabbitmq.DeployUser}))
		i.try(code(false), "declare "+exchange, func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil)
		})
		i.try(code(false), "delete "+exchange, func(ch *amqp091.Channel) error { return ch.ExchangeDelete(exchange, false, false) })
		for other := range exchanges {
			i.try(code(false), "bind "+exchange+" to "+other, func(ch *amqp091.Channel) error {
				return ch.ExchangeBind(exchange, "", of.Prefix+other, false, nil)
			})
		}
	}
	i.try(code(false), "make an exchange", func(ch *amqp091.Channel) error {
		return ch.ExchangeDeclare(of.Prefix+self.Name, "fanout", true, false, false, false, nil)
	})
	i.try(code(false), "make a queue", func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare("", false, true, true, false, nil)
		return err
	})
	i.try(code(false), "read what all others log", func(ch *amqp091.Channel) error { return ch.QueueBind("amq.gen-x", "#", "amq.rabbitmq.log", false, nil) })
	if _, err := amqp091.DialConfig(as(node, user), amqp091.Config{Vhost: "elsewhere"}); err == nil {
		t.Errorf("%s is let into another virtual host", user)
	}
}

// A Publisher and a Subscriber say of what a service may not do that it is refused.
func testForgeryByPublisher(t *testing.T, node *rabbittest.Node, of rabbitmq.Topology) {
	quiet := slog.New(slog.DiscardHandler)
	cfg, err := rabbitmq.NewConfig(as(node, of.Prefix+"shipping"), "order", &rabbitmq.ConfigOptions{Prefix: of.Prefix, Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		topic, user string
		says        string
	}{
		{publishes["shipping"][0], "", ""},
		{publishes["shipping"][0], of.Prefix + "shipping", ""},
		{publishes["shipping"][0], of.Prefix + "order", "PRECONDITION_FAILED"},
		{publishes["payment"][0], "", "ACCESS_REFUSED"},
		{publishes["order"][0], of.Prefix + "order", "ACCESS_REFUSED"},
		{"absent", "", "NOT_FOUND"},
	} {
		pub, err := rabbitmq.NewPublisher(cfg, &rabbitmq.PublisherOptions{UserID: tt.user, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		err = pub.Publish(tt.topic, message.NewMessage("forged", nil))
		pub.Close()
		if tt.says == "" && err != nil || tt.says != "" && (!errors.Is(err, rabbitmq.ErrRejected) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("Publish to %s as %q = %v, want ErrRejected with %q", tt.topic, tt.user, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("the password is in %v", err)
		}
	}
	sub, err := rabbitmq.NewSubscriber(cfg, &rabbitmq.SubscriberOptions{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	var refusal *amqp091.Error
	if _, err := sub.Subscribe(t.Context(), listens["order"][0]); !errors.As(err, &refusal) || refusal.Code != amqp091.AccessRefused {
		t.Errorf("Subscribe to another service's queue = %v, want ACCESS_REFUSED", err)
	}
}

// testRestrictedSagas runs each service as a user of its own, as processes of their own
// would, and sees sagas through, compensations included.
func testRestrictedSagas(t *testing.T, node *rabbittest.Node) {
	sites <- struct{}{}
	defer func() { <-sites }()
	databaseURL := pgtest.Database(t)
	urls := map[string]string{}
	for _, name := range []string{"gateway", "order", "payment", "shipping"} {
		s := &settings{
			services: []string{name}, listen: "127.0.0.1:0", patience: time.Minute, namespace: defaultNamespace,
			databaseURL: databaseURL, amqpURL: as(node, defaultNamespace+"."+name), gatewayURL: urls["gateway"], restricted: true,
		}
		var err error
		s.allowPlaintext, err = plaintext.Allowed()
		if err := errors.Join(err, s.check()); err != nil {
			t.Fatal(err)
		}
		urls[name] = startApp(t, &app{settings: s, logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))})
	}
	f := &fleet{urls: urls}
	for name := range urls {
		if err := f.awaitReady(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	s := &site{url: urls["order"], t: t, databaseURL: databaseURL}
	for item, want := range map[string]string{"book": "completed", "unshippable": "cancelled"} {
		id := s.place("acme", "k:"+item, fmt.Sprintf(`{"item":%q,"quantity":1,"amount":4200,"currency":"EUR","card":"tok_ok"}`, item))
		if got := s.end("acme", id); got.Status != want {
			t.Errorf("the order of a %s is %s, want %s", item, got.Status, want)
		}
	}
}

// testLimits tries what an operator sets besides permissions.
func testLimits(t *testing.T, node *rabbittest.Node) {
	const user = "limited"
	node.Ctl(t, "add_user", user, password)
	node.Ctl(t, "set_permissions", user, "", "", "")
	node.Ctl(t, "set_user_limits", user, `{"max-connections":1,"max-channels":1}`)
	i := newIntruder(t, node, user)
	var e *amqp091.Error
	if _, err := amqp091.Dial(as(node, user)); !errors.As(err, &e) || e.Code != amqp091.NotAllowed {
		t.Errorf("one connection over the limit: %v, want NOT_ALLOWED", err)
	}
	if _, err := i.conn.Channel(); err != nil {
		t.Fatal(err)
	}
	if _, err := i.conn.Channel(); !errors.As(err, &e) || e.Code != amqp091.NotAllowed {
		t.Errorf("one channel over the limit: %v, want NOT_ALLOWED", err)
	}
	payment := newIntruder(t, node, defaultNamespace+".payment")
	to := defaultNamespace + "." + publishes["payment"][0]
	payment.try(0, "publish as much as is allowed", publish(to, "", amqp091.Publishing{Body: make([]byte, maxMessage)}))
	payment.try(amqp091.PreconditionFailed, "publish more", publish(to, "", amqp091.Publishing{Body: make([]byte, maxMessage+1)}))
	node.Ctl(t, "delete_user", "guest")
	if _, err := amqp091.Dial(node.URL()); !errors.As(err, &e) || e.Code != amqp091.AccessRefused {
		t.Errorf("guest: %v, want ACCESS_REFUSED", err)
	}
}
