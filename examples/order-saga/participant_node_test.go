package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/order-saga/internal/event"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/outbox"
)

const (
	nodeProgram  = "../participant-node"
	npmPatience  = 2 * time.Minute
	nodePatience = time.Minute
)

// need skips the test on a machine without one of the programs.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			needtest.Missing(t, "node", "no %s on this machine", name)
		}
	}
}

// participant returns a folder with the program in ../participant-node and what it
// depends on, none of which is put into the tree.
func participant(t *testing.T) (dir string) {
	t.Helper()
	need(t, "node", "npm")
	files, err := filepath.Glob(nodeProgram + "/*.*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no program in %s", nodeProgram)
	}
	dir = t.TempDir()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	forbidden, err := devservices.InstallForbidden()
	if err != nil {
		t.Fatal(err)
	}
	if forbidden {
		needtest.Missing(t, "node", "SAGAMILL_INSTALL=no forbids npm to fetch the program's packages")
	}
	ctx, cancel := context.WithTimeout(t.Context(), npmPatience)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--prefer-offline")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		needtest.Missing(t, "node", "npm ci: %v\n%s", err, out)
	}
	return dir
}

// The program reads the step keys that internal/stepkey reads, and no others, messages of
// the one version of the format, and a list of brokers as internal/brokerurls does.
func TestParticipantReadsWhatTheLibraryReads(t *testing.T) {
	t.Parallel()
	need(t, "node")
	cmd := exec.CommandContext(t.Context(), "node", "--test", "message.test.js", "broker.test.js")
	cmd.Dir = nodeProgram
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A harbour is the site without its shipping service, which is the program of another
// language.
type harbour struct {
	*site
	dir       string
	namespace string
	db        *pgxpool.Pool
	channel   *amqp091.Channel
}

func newHarbour(t *testing.T) *harbour {
	t.Helper()
	h := &harbour{dir: participant(t)}
	h.site = newSite(t, brokerURL(), func(s *settings) {
		s.Services = []string{"order", "payment", "gateway"}
		h.namespace = s.Namespace
	})
	h.db = pgtest.Pool(t, h.databaseURL)
	conn, err := amqp091.Dial(brokerURL())
	if err != nil {
		t.Fatal("no RabbitMQ")
	}
	t.Cleanup(func() { _ = conn.Close() })
	if h.channel, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	return h
}

// launch starts the program. options are node's.
func (h *harbour) launch(options ...string) *proctest.Process {
	h.t.Helper()
	cmd := exec.Command("node", append(options, "main.js")...)
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "DATABASE_URL="+h.databaseURL, "AMQP_URL="+brokerURL(), "ORDER_SAGA_NAMESPACE="+h.namespace)
	cmd.Stderr = h.t.Output()
	p, err := proctest.Launch(cmd)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(p.Kill)
	return p
}

// queue is where the program gets its messages.
func (h *harbour) queue() string { return h.namespace + "." + event.PaymentProcessed + ".shipping" }

// copies returns what is published to the program from now on.
func (h *harbour) copies() <-chan amqp091.Delivery {
	h.t.Helper()
	q, err := h.channel.QueueDeclare("", false, true, true, false, nil)
	if err == nil {
		err = h.channel.QueueBind(q.Name, "", h.namespace+"."+event.PaymentProcessed, false, nil)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	copies, err := h.channel.Consume(q.Name, "", true, true, false, false, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return copies
}

// deliver gives the program a message, as if its relay had published it.
func (h *harbour) deliver(d amqp091.Delivery, change func(*amqp091.Publishing)) {
	h.t.Helper()
	p := amqp091.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, DeliveryMode: d.DeliveryMode, CorrelationId: d.CorrelationId,
		MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, Body: d.Body,
	}
	change(&p)
	if err := h.channel.PublishWithContext(h.t.Context(), "", h.queue(), true, false, p); err != nil {
		h.t.Fatal(err)
	}
}

// awaitLength waits until a queue has as many messages.
func (h *harbour) awaitLength(queue string, want int) {
	h.t.Helper()
	h.awaitQueue(queue, fmt.Sprint(want, " messages"), func(q amqp091.Queue) bool { return q.Messages == want })
}

// awaitQueue waits until a queue has what is wanted of it.
func (h *harbour) awaitQueue(queue, what string, has func(amqp091.Queue) bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), nodePatience)
	defer cancel()
	for {
		q, err := h.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			h.t.Fatal(err)
		}
		if has(q) {
			return
		}
		if ctx.Err() != nil {
			h.t.Fatalf("queue %s has %d messages and %d consumers, want %s", queue, q.Messages, q.Consumers, what)
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
	}
}

// awaitShipments waits until the program has done its step for as many orders.
func (h *harbour) awaitShipments(least int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), nodePatience)
	defer cancel()
	for h.count("SELECT count(*) FROM shipping_node.shipment") < least {
		if ctx.Err() != nil {
			h.t.Fatalf("fewer than %d shipments within %v", least, nodePatience)
		}
		_ = backoff.Sleep(ctx, time.Millisecond)
	}
}

func (h *harbour) count(query string) (n int) {
	h.t.Helper()
	if err := h.db.QueryRow(h.t.Context(), query).Scan(&n); err != nil {
		h.t.Fatal(err)
	}
	return n
}

// crash makes node kill itself when amqplib is to do something for the first time.
const crash = `
const { Channel, ConfirmChannel } = require(process.cwd() + '/node_modules/amqplib/lib/channel_model.js');
const owner = { publish: ConfirmChannel, ack: Channel }['%[1]s'];
owner.prototype['%[1]s'] = () => process.kill(process.pid, 'SIGKILL');
`

// crashes runs the program until it is about to do something.
func (h *harbour) crashes(before string) {
	h.t.Helper()
	file := filepath.Join(h.dir, before+".cjs")
	if err := os.WriteFile(file, fmt.Appendf(nil, crash, before), 0o600); err != nil {
		h.t.Fatal(err)
	}
	p := h.launch("--require", file)
	if code := p.Wait(nodePatience); code != -1 {
		h.t.Fatalf("the program ended with %d before %s, want it killed", code, before)
	}
	if n := h.count("SELECT count(*) FROM shipping_node.shipment"); n != 1 {
		h.t.Errorf("%d shipments before %s, want the one that was committed", n, before)
	}
	h.awaitLength(h.queue(), 1)
}

// A participant without the library keeps its part of the bargain: killed between its
// commit and its answer, between the answer and the ack, and anywhere else, given every
// message twice, it ships each order once or has it refunded once.
func TestParticipantInAnotherLanguage(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	h := newHarbour(t)
	copies := h.copies()
	crashed := newLoad(h.url, 1)
	crashed.Items[0].Tenant = "crashed"
	if err := crashed.PlaceItem(t.Context(), crashed.Items[0]); err != nil {
		t.Fatal(err)
	}
	h.awaitLength(h.queue(), 1)
	h.crashes("publish")
	h.crashes("ack")
	ctx, cancel := context.WithTimeout(t.Context(), nodePatience)
	defer cancel()
	crashed.AwaitSagas(ctx) // nobody has acked it yet
	if ctx.Err() != nil {
		t.Fatal("the order has no answer from a program that was killed before its ack")
	}

	const orders = 24
	l := newLoad(h.url, orders)
	for i, p := range l.Items {
		p.kind = &kinds[[]int{0, 3}[i%2]] // shipped and unshippable ones
	}
	for _, p := range l.Items[:2] { // one of each kind, of two tenants
		p.Key = `"order 42"`
	}
	participants := []*proctest.Process{h.launch(), h.launch()}
	var placing sync.WaitGroup
	placing.Go(func() {
		if err := l.PlaceAll(ctx, 4); err != nil {
			t.Error(err)
		}
	})
	var last amqp091.Delivery
	for n := range orders + 1 {
		select {
		case last = <-copies:
			h.deliver(last, inFormat("1"))
		case <-ctx.Done():
			t.Fatalf("only %d payments within %v", n, nodePatience)
		}
		if n%6 == 5 {
			h.awaitShipments(n - 1) // it is at work
			participants[n/6%2].Kill()
			participants[n/6%2] = h.launch()
		}
	}
	placing.Wait()
	l.AwaitSagas(ctx)
	h.awaitLength(h.queue(), 0)
	h.judge(append(crashed.Items, l.Items...))
	h.refuses(last)
	h.awaitQueue(h.queue(), "both programs", func(q amqp091.Queue) bool { return q.Consumers == len(participants) }) // the last one may be starting
	for _, p := range participants {
		p.Terminate()
		if code := p.Wait(nodePatience); code != 0 {
			t.Errorf("the program ended with %d after SIGTERM, want 0", code)
		}
	}
}

// inFormat returns a change that says of which version of the format a message is.
func inFormat(version string) func(*amqp091.Publishing) {
	return func(p *amqp091.Publishing) {
		p.Headers = maps.Clone(p.Headers)
		p.Headers[outbox.HeaderFormat] = version
	}
}

// awaitEmpty waits until the services of this program have nothing left to do, and
// returns what they still have if that takes too long.
func (h *harbour) awaitEmpty() (left []string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), nodePatience)
	defer cancel()
	for {
		_, body, err := demo.FetchURL(h.t.Context(), h.url+"/metrics")
		if err != nil {
			h.t.Fatal(err)
		}
		left = append(program.FindUnfinished("order", string(body)), program.FindUnfinished("payment", string(body))...)
		if len(left) == 0 || ctx.Err() != nil {
			return left
		}
		_ = backoff.Sleep(ctx, 50*time.Millisecond)
	}
}

// judge checks that all is as the demo's invariants say, and that each order was shipped
// or rejected once.
func (h *harbour) judge(orders []*placed) {
	h.t.Helper()
	ledger, err := fetchLedger(h.t.Context(), h.url)
	if err != nil {
		h.t.Fatal(err)
	}
	r := &result{orders: orders, ledger: ledger, left: h.awaitEmpty()}
	for _, i := range invariants {
		for _, bad := range i.Check(r) {
			h.t.Errorf("not so: %s: %s", i.Says, bad)
		}
	}
	if n := h.count("SELECT count(*) FROM shipping_node.shipment"); n != len(orders) {
		h.t.Errorf("%d shipments, want %d", n, len(orders))
	}
	h.awaitLength(h.queue()+".dead", 0)
}

// refuses gives the program what no attempt can handle, made of a message that it has
// handled.
func (h *harbour) refuses(d amqp091.Delivery) {
	h.t.Helper()
	before := h.count("SELECT count(*) FROM shipping_node.inbox")
	changes := []func(*amqp091.Publishing){
		func(p *amqp091.Publishing) { p.Headers = nil },
		inFormat("2"),
		func(p *amqp091.Publishing) { p.Type = "" },
		func(p *amqp091.Publishing) { p.Body = []byte("{") },
		func(p *amqp091.Publishing) { p.Body = append(p.Body, ' ') }, // another payload under the same key
	}
	for _, change := range changes {
		h.deliver(d, change)
	}
	h.awaitLength(h.queue()+".dead", len(changes))
	if n := h.count("SELECT count(*) FROM shipping_node.inbox"); n != before {
		h.t.Errorf("%d rows in the inbox after refused messages, want %d", n, before)
	}
}
