package rabbitmq_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// The examples test the effect of these permissions, with whole sagas.
func TestPermissionsOfATopology(t *testing.T) {
	t.Parallel()
	got, err := rabbitmq.Topology{Prefix: "shop.", Processes: 2, Services: []rabbitmq.Service{
		{Name: "order", Publishes: []string{"order.created"}, Listens: []string{"paid", "declined"}},
		{Name: "mail", Listens: []string{"paid"}},
		{Name: "web+app", Publishes: []string{"order.created", "a|b"}},
	}}.Permissions()
	if err != nil {
		t.Fatal(err)
	}
	want := []rabbitmq.Permissions{
		{
			User:      "shop.deploy",
			Configure: `^(shop\.declined|shop\.declined\.order|shop\.declined\.order\.dead|shop\.paid|shop\.paid\.mail|shop\.paid\.mail\.dead|shop\.paid\.order|shop\.paid\.order\.dead)$`,
			Write:     `^(amq\.default|shop\.declined\.order|shop\.paid\.mail|shop\.paid\.order)$`,
			Read:      `^(shop\.declined|shop\.declined\.order|shop\.paid|shop\.paid\.mail|shop\.paid\.order)$`,

			MaxConnections: 12, MaxChannels: 192,
		},
		{User: "shop.order", Configure: "^$", Write: `^(shop\.order\.created)$`, Read: `^(shop\.declined\.order|shop\.declined\.order\.dead|shop\.paid\.order|shop\.paid\.order\.dead)$`, MaxConnections: 20, MaxChannels: 320},
		{User: "shop.mail", Configure: "^$", Write: "^$", Read: `^(shop\.paid\.mail|shop\.paid\.mail\.dead)$`, MaxConnections: 16, MaxChannels: 256},
		{User: "shop.web+app", Configure: "^$", Write: `^(shop\.a\|b|shop\.order\.created)$`, Read: "^$", MaxConnections: 12, MaxChannels: 192},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Permissions: got +, want -:\n%s", d)
	}
}

func TestTopologyRefuses(t *testing.T) {
	t.Parallel()
	for name, services := range map[string][]rabbitmq.Service{
		"the user of the deployment":    {{Name: "deploy"}},
		"a service twice":               {{Name: "a"}, {Name: "a"}},
		"a service with a dot":          {{Name: "a.b"}},
		"no service":                    {{}},
		"an empty topic":                {{Name: "a", Publishes: []string{""}}},
		"a line break":                  {{Name: "a", Listens: []string{"x\n"}}},
		"a line break in a service":     {{Name: "a\nb", Listens: []string{"x"}}},
		"a topic that is too long":      {{Name: "a", Listens: []string{strings.Repeat("t", outbox.MaxTopic+1)}}},
		"an exchange like a queue":      {{Name: "a", Listens: []string{"x"}}, {Name: "b", Publishes: []string{"x.a"}}},
		"an exchange like a dead queue": {{Name: "a", Publishes: []string{"x.b.dead"}}, {Name: "b", Listens: []string{"x"}}},
	} {
		if got, err := (rabbitmq.Topology{Prefix: "p.", Services: services}).Permissions(); !errors.Is(err, rabbitmq.ErrConfig) {
			t.Errorf("%s: %v, %v; want ErrConfig", name, got, err)
		}
	}
}

// A message says which of the broker's users has sent it, or nothing at all.
func TestUserIDIsTheBrokersWord(t *testing.T) {
	t.Parallel()
	cfg := declared(t, "orders")
	messages, _ := subscribe(t, cfg, "orders", fast())
	for _, tt := range []struct{ option, forged, want string }{
		{"", "", ""},
		{"", "somebody", ""},
		{userOf(t), "somebody", userOf(t)},
	} {
		pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{UserID: tt.option})
		msg := newMessage("x")
		msg.Metadata[rabbitmq.MetadataUserID] = tt.forged
		if err := pub.Publish("orders", msg); err != nil {
			t.Fatal(err)
		}
		got := next(t, messages)
		got.Ack()
		if id, ok := got.Metadata[rabbitmq.MetadataUserID]; id != tt.want || ok != (tt.want != "") {
			t.Errorf("with the option %q and the metadata %q: %q arrived, want %q", tt.option, tt.forged, id, tt.want)
		}
	}
	pub := newPublisher(t, cfg, &rabbitmq.PublisherOptions{UserID: "somebody"})
	if err := pub.Publish("orders", newMessage("x")); !errors.Is(err, rabbitmq.ErrRejected) || !strings.Contains(err.Error(), "PRECONDITION_FAILED") {
		t.Errorf("Publish under another name = %v, want ErrRejected", err)
	}
}

// userOf returns the user of the tests' broker.
func userOf(t *testing.T) string {
	t.Helper()
	uri, err := amqp.ParseURI(rabbittest.URL())
	if err != nil {
		t.Fatal(err)
	}
	return uri.Username
}

// With Passive nothing is made, and what is missing is waited for.
func TestPassiveMakesNothing(t *testing.T) {
	t.Parallel()
	active := newConfig(t, rabbittest.URL(), "orders")
	prefix, _, _ := strings.Cut(active.Exchange.GenerateName("orders"), "orders")
	cfg, err := rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{Prefix: prefix, Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	pub := newPublisher(t, cfg, nil)
	if err := pub.Publish("orders", newMessage("x")); !errors.Is(err, rabbitmq.ErrRejected) || !strings.Contains(err.Error(), "NOT_FOUND") {
		t.Errorf("Publish to an exchange that nobody has declared = %v, want ErrRejected", err)
	}
	waits := make(chan struct{}, 1)
	opts := fast()
	opts.Logger = slog.New(slog.NewTextHandler(calls(func() {
		select {
		case waits <- struct{}{}:
		default:
		}
	}), nil))
	sub, err := rabbitmq.NewSubscriber(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	subscribed := make(chan (<-chan *message.Message), 1)
	go func() { // ends with sub
		messages, err := sub.Subscribe(context.Background(), "orders")
		if err != nil {
			t.Errorf("Subscribe: %v", err)
		}
		subscribed <- messages
	}()
	within(t, "waiting for a queue that is missing", func() { <-waits })
	if err := rabbitmq.DeclareTopology(t.Context(), active, "orders"); err != nil {
		t.Fatal(err)
	}
	var messages <-chan *message.Message
	within(t, "Subscribe", func() { messages = <-subscribed })
	if err := rabbitmq.DeclareTopology(t.Context(), cfg, "orders"); err != nil {
		t.Errorf("DeclareTopology of what is there = %v", err)
	}
	ids := map[string]bool{}
	for deadline := time.Now().Add(patience); len(ids) == 0; { // a refusal is remembered for a moment
		msg := newMessage("x")
		if err := pub.Publish("orders", msg); err == nil {
			ids[msg.UUID] = true
		} else if !errors.Is(err, rabbitmq.ErrRejected) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	ackAll(t, messages, ids)
}

// A service whose user has the permissions that were enough before RabbitMQ 4.2.6 is served, and is told what to change.
func TestPrivateBrokerOldPermissions(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	node := rabbittest.StartNode(t)
	active := nodeConfig(t, node.URL())
	if err := rabbitmq.DeclareTopology(t.Context(), active, "orders"); err != nil {
		t.Fatal(err)
	}
	const user = "old"
	node.Ctl(t, "add_user", user, password)
	node.Ctl(t, "set_permissions", user, "^$", "^$", "^"+regexp.QuoteMeta(active.Queue.GenerateName("orders"))+"$")
	prefix, _, _ := strings.Cut(active.Exchange.GenerateName("orders"), "orders")
	passive, err := rabbitmq.NewConfig(strings.Replace(node.URL(), "guest:guest", user+":"+password, 1), service, &rabbitmq.ConfigOptions{Prefix: prefix, Passive: true})
	if err != nil {
		t.Fatal(err)
	}
	var warnings atomic.Int64
	opts := fast()
	opts.Logger = slog.New(slog.NewTextHandler(calls(func() { warnings.Add(1) }), nil))
	messages, sub := subscribe(t, passive, "orders", opts)
	if err := newPublisher(t, active, nil).Publish("orders", newMessage("x")); err != nil {
		t.Fatal(err)
	}
	next(t, messages).Ack()
	if sub.Close(); warnings.Load() > 1 {
		t.Errorf("%d warnings, want one at most", warnings.Load())
	}
}
