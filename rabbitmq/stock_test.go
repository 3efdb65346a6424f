package rabbitmq_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// The reason for this package, as a test: what watermill-amqp v3.1.0 and the
// middleware of watermill 1.5.1 lose, repeat or hold up, and what takes its
// place here. A stock half that fails says that upstream has changed: then its
// row, and what is built around it, can be looked at again.
//
// The stock halves run in processes of their own: some of what they show leaves
// goroutines and connections behind, or is a data race.

// A side is one of the two: the same settings, and who works with them.
type side struct {
	stock bool
	cfg   wamqp.Config
}

// A stockRow is something to be seen on both sides.
type stockRow struct {
	name      string
	stock     func(*testing.T, *side) string
	wantStock string
	ours      func(*testing.T, *side) string // default: as stock
	wantOurs  string
}

var stockRows = []stockRow{
	{
		name:  "W1 a failed message on a quorum queue",
		stock: redeliverFromQuorumQueue, wantStock: "handled once, delivered 15 times", wantOurs: "handled again",
	},
	{
		name:  "W2 an exchange without a queue",
		stock: publishUnroutable, wantStock: "published", wantOurs: "refused",
	},
	{
		name:  "W3 the router closes while a handler runs",
		stock: closeRouterInHandler, wantStock: "its context ended, another consumer ran the message meanwhile", wantOurs: "its context lived, nobody else ran the message",
	},
	{
		name:  "W4 ten messages and a prefetch of ten",
		stock: handleTen, wantStock: "1 at once", wantOurs: "10 at once",
	},
	{
		name:  "W5 a message that cannot be marshalled, in a transaction",
		stock: publishUnmarshallable, wantStock: "published, the queue has 0", wantOurs: "refused, the queue has 0",
	},
	{
		name:  "W6 a handler behind the deduplicator that fails once",
		stock: failBehindDeduplicator, wantStock: "handled once, the queue has 0",
		ours: failBehindInbox, wantOurs: "handled twice, the queue has 0",
	},
	{
		name:  "W7 a retry with a hook",
		stock: retryWithHook, wantStock: "waits 1ms 4ms 16ms 64ms",
		ours: retryWithPolicy, wantOurs: "waits 1ms 2ms 4ms 8ms",
	},
	{
		name:  "ten messages one after the other",
		stock: publishTen, wantStock: "10 channels", wantOurs: "2 channels",
	},
	{
		name:  "three messages whose confirms do not come",
		stock: publishUnconfirmed, wantStock: "1 sent, then published", wantOurs: "3 sent, then published",
	},
	{
		name:  "a caller that gives up waiting",
		stock: publishGivenUp, wantStock: "waits for the confirm: published", wantOurs: "told so",
	},
	{
		name:  "the queue is deleted under a subscription",
		stock: deleteQueue, wantStock: `first arrives message ""`, wantOurs: `first arrives message "after"`,
	},
	{
		name:  "what other clients see of a message",
		stock: readRaw, wantStock: `message-id ""`, wantOurs: `message-id "id"`,
	},
}

func TestStock(t *testing.T) {
	t.Parallel()
	for _, row := range stockRows {
		if row.ours == nil {
			row.ours = row.stock
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			t.Run("stock", func(t *testing.T) {
				t.Parallel()
				if got := runStock(t, row.name, stockPrefix(t)); got != row.wantStock {
					t.Errorf("watermill: %s; it used to be: %s", got, row.wantStock)
				}
			})
			t.Run("sagamill", func(t *testing.T) {
				t.Parallel()
				if got := row.ours(t, newSide(stockPrefix(t), false)); got != row.wantOurs {
					t.Errorf("sagamill: %s, want: %s", got, row.wantOurs)
				}
			})
		})
	}
}

const (
	stockTopic = "orders"
	stockName  = "SAGAMILL_STOCK_ROW"
	stockUse   = "SAGAMILL_STOCK_PREFIX"
	stockSays  = "seen: "
)

// stockPrefix returns a prefix of names and deletes what is made under them.
func stockPrefix(t *testing.T) string {
	prefix := rabbittest.Name()
	rabbittest.Delete(t, []string{prefix + stockTopic + "_svc"}, []string{prefix + stockTopic})
	return prefix
}

// runStock runs the stock half of a row in a process, and returns what it saw.
// How the process ends does not matter after that.
func runStock(t *testing.T, name, prefix string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestStockProcess$", "-test.timeout="+(2*patience).String())
	cmd.Env = append(os.Environ(), stockName+"="+name, stockUse+"="+prefix)
	output, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(output)) {
		if seen, ok := strings.CutPrefix(line, stockSays); ok {
			return strings.TrimSpace(seen)
		}
	}
	t.Fatalf("process: %v\n%s", err, output)
	return ""
}

// TestStockProcess is the process of runStock. Run alone, it does nothing.
func TestStockProcess(t *testing.T) {
	t.Parallel()
	for _, row := range stockRows {
		if row.name == os.Getenv(stockName) {
			fmt.Printf("%s%s\n", stockSays, row.stock(t, newSide(os.Getenv(stockUse), true)))
			os.Exit(0) // without a goodbye: some of it never returns
		}
	}
}

// newSide returns the settings of watermill-amqp's own constructor.
func newSide(prefix string, stock bool) *side {
	cfg := wamqp.NewDurablePubSubConfig(rabbittest.URL(), wamqp.GenerateQueueNameTopicNameWithSuffix("svc"))
	queue := cfg.Queue.GenerateName
	cfg.Exchange.GenerateName = func(topic string) string { return prefix + topic }
	cfg.Queue.GenerateName = func(topic string) string { return queue(prefix + topic) }
	return &side{stock: stock, cfg: cfg}
}

func (s *side) publisher(t *testing.T) message.Publisher {
	t.Helper()
	if !s.stock {
		return newPublisher(t, s.cfg, nil)
	}
	pub, err := wamqp.NewPublisher(s.cfg, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

func (s *side) subscriber(t *testing.T) message.Subscriber {
	t.Helper()
	if !s.stock {
		sub, err := rabbitmq.NewSubscriber(s.cfg, fast())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sub.Close() })
		return sub
	}
	sub, err := wamqp.NewSubscriber(s.cfg, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func (s *side) subscribe(t *testing.T) <-chan *message.Message {
	t.Helper()
	messages, err := s.subscriber(t).Subscribe(context.Background(), stockTopic)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// declare makes exchange, queue and binding.
func (s *side) declare(t *testing.T) {
	t.Helper()
	if err := s.subscriber(t).(message.SubscribeInitializer).SubscribeInitialize(stockTopic); err != nil {
		t.Fatal(err)
	}
}

// publish publishes a message with id as its UUID and its payload.
func (s *side) publish(t *testing.T, pub message.Publisher, id string) {
	t.Helper()
	if err := pub.Publish(stockTopic, message.NewMessage(id, message.Payload(id))); err != nil {
		t.Fatalf("publish %s: %v", id, err)
	}
}

// ready returns the number of messages in the queue that are not delivered.
func (s *side) ready(t *testing.T, ch *amqp.Channel) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(s.cfg.Queue.GenerateName(stockTopic), true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

// until asks again and again until the answer is yes.
func until(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !yes(); {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// await waits for an event.
func await(t *testing.T, event <-chan struct{}, what string) {
	t.Helper()
	within(t, what, func() { <-event })
}
