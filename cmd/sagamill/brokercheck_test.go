package main

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// startManagedNode starts a private broker with the management API, and returns the API's URL.
func startManagedNode(t *testing.T) (node *rabbittest.Node, management string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	node = rabbittest.StartNodeWith(t, &rabbitnode.Options{
		Plugins: []string{"rabbitmq_management"},
		Config:  fmt.Sprintf("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\n", port),
	})
	return node, fmt.Sprintf("http://guest:guest@127.0.0.1:%d", port)
}

// A checkedBroker is a broker with the topology of one service that listens.
type checkedBroker struct {
	*testing.T
	node *rabbittest.Node
	at   string // flags that say where the broker is
	file string
	ch   *amqp.Channel
}

// run runs a command of the family broker.
func (b *checkedBroker) run(verb, at string) (code int, out string) {
	b.Helper()
	var text bytes.Buffer
	code = run(b.Context(), append([]string{"broker", verb, "-topology", b.file}, strings.Fields(at)...), &text, &text)
	return code, text.String()
}

// await runs the check until it ends with code and prints all of want. The management API shows a change late.
func (b *checkedBroker) await(code int, want ...string) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		got, out := b.run("check", b.at)
		missing := ""
		for _, text := range want {
			if !strings.Contains(out, text) {
				missing = text
			}
		}
		if got == code && missing == "" {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("exit %d, want %d:\n%s\nit lacks %q", got, code, out, missing)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// publish sends a message that has to reach a queue, and reports whether the broker confirmed it without returning it.
func (b *checkedBroker) publish(exchange string) bool {
	b.Helper()
	returned := b.ch.NotifyReturn(make(chan amqp.Return, 1))
	sent, err := b.ch.PublishWithDeferredConfirm(exchange, "", true, false, amqp.Publishing{})
	if err != nil {
		b.Fatal(err)
	}
	confirmed := sent.Wait()
	select {
	case <-returned: // the broker sends it before its confirm
		return false
	default:
		return confirmed
	}
}

// What policies do to messages is seen at a real broker, and the command finds each of them.
func TestBrokerCheckFindsPoliciesOfARealBroker(t *testing.T) {
	t.Parallel()
	node, management := startManagedNode(t)
	b := &checkedBroker{T: t, node: node, at: "-management " + management, ch: rabbittest.Channel(t, node.URL())}
	b.file = topologyFile(t, `{"prefix": "shop.", "services": [{"name": "order", "publishes": ["ordered"]}, {"name": "pay", "listens": ["ordered"]}]}`)
	if err := b.ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	overAMQP := "-amqp " + node.URL()
	if code, out := b.run("check", overAMQP); code != 1 || !strings.Contains(out, "exchange shop.ordered: is missing") || !strings.Contains(out, "queue shop.ordered.pay.dead: is missing") {
		t.Errorf("without a topology: exit %d, %s", code, out)
	}
	b.await(1, "exchange shop.ordered: is missing", "queue shop.ordered.pay: is missing")
	if code, out := b.run("declare", overAMQP); code != 0 {
		t.Fatalf("declare: exit %d, %s", code, out)
	}
	b.await(0, "no problems: 2 queues, 1 exchange\n")
	b.checkRights(management)

	node.Ctl(t, "set_policy", "ttl", "pay$", `{"message-ttl":1,"dead-letter-exchange":"elsewhere"}`, "--apply-to", "queues")
	b.await(1, "queue shop.ordered.pay: message-ttl 1 by policy ttl: ")
	b.publish("shop.ordered")
	b.await(1, "queue shop.ordered.pay.dead: has 1 message: ") // the argument counts more than the policy's exchange
	if code, out := b.run("check", overAMQP); code != 1 || !strings.Contains(out, "queue shop.ordered.pay.dead: has 1 message: ") || !strings.Contains(out, "not checked: policies") {
		t.Errorf("a dead letter: exit %d, %s", code, out)
	}
	if _, err := b.ch.QueuePurge("shop.ordered.pay.dead", false); err != nil {
		t.Fatal(err)
	}
	node.Ctl(t, "clear_policy", "ttl")
	b.await(0, "no problems")

	node.Ctl(t, "set_operator_policy", "op", "ordered", `{"message-ttl":60000}`, "--apply-to", "queues")
	b.await(1, "queue shop.ordered.pay: message-ttl 60000 by operator policy op: ", "queue shop.ordered.pay.dead: message-ttl 60000 by operator policy op: ")
	node.Ctl(t, "clear_operator_policy", "op")

	if err := b.ch.QueueUnbind("shop.ordered.pay", "", "shop.ordered", nil); err != nil {
		t.Fatal(err)
	}
	b.await(1, "exchange shop.ordered: has no queue: ", "queue shop.ordered.pay: is not bound to exchange shop.ordered: ")
	if b.publish("shop.ordered") {
		t.Error("a message without a queue is taken for delivered")
	}
	if err := b.ch.ExchangeDeclare("unrouted", "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.ch.QueueBind(declareQueue(t, b.ch), "", "unrouted", false, nil); err != nil {
		t.Fatal(err)
	}
	node.Ctl(t, "set_policy", "ae", "ordered$", `{"alternate-exchange":"unrouted"}`, "--apply-to", "exchanges")
	b.await(1, "exchange shop.ordered: alternate-exchange unrouted by policy ae: ")
	if !b.publish("shop.ordered") {
		t.Error("with an alternate exchange a message without a queue is refused: the check need not find it")
	}
	node.Ctl(t, "clear_policy", "ae")

	node.Ctl(t, "set_policy", "idle", "ordered", `{"expires":3600000}`, "--apply-to", "queues")
	b.await(1, "queue shop.ordered.pay: expires 3600000 by policy idle: ", "queue shop.ordered.pay.dead: expires 3600000 by policy idle: ")
	node.Ctl(t, "set_policy", "idle", "ordered", `{"expires":1}`, "--apply-to", "queues")
	b.await(1, "queue shop.ordered.pay: is missing", "queue shop.ordered.pay.dead: is missing")
}

// declareQueue declares a queue and returns its name.
func declareQueue(t *testing.T, ch *amqp.Channel) string {
	t.Helper()
	q, err := ch.QueueDeclare("unrouted", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Name
}

// checkRights checks as users with fewer rights, and at a virtual host that is not there. There is a topology.
func (b *checkedBroker) checkRights(management string) {
	b.Helper()
	b.node.Ctl(b, "add_user", "few", "s3cr3t")
	b.node.Ctl(b, "set_user_tags", "few", "management")
	b.node.Ctl(b, "set_permissions", "few", "^$", "^$", "^$")
	for _, tt := range []struct {
		at, want string
		code     int
	}{
		{strings.Replace(management, "guest:guest", "few:s3cr3t", 1), "sagamill: not checked: members of queues, because the user needs the tag monitoring\n", 0},
		{strings.Replace(management, "guest:guest", "guest:s3cr3t", 1), "sagamill: the management API refuses the user: ", 1},
		{management + "/none", "sagamill: the management API does not know the virtual host: look at the name of the virtual host (virtual host none)\n", 1},
	} {
		if code, out := b.run("check", "-management "+tt.at); code != tt.code || !strings.Contains(out, tt.want) || strings.Contains(out, "s3cr3t") {
			b.Errorf("exit %d, %s\nwant %d and %q", code, out, tt.code, tt.want)
		}
	}
}
