package rabbitmq_test

import (
	"context"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// The load of [BenchmarkPublisher]: what a relay with its default lanes and
// batch sends.
const (
	benchCallers = 4
	benchBatch   = 512
	benchWindow  = 1000 // of the raw loop, on its one channel
	benchRound   = 8 * benchCallers * benchBatch
)

// BenchmarkPublisher compares four callers of PublishBatch with the least that
// amqp091-go can do for as much: one channel, every message mandatory and
// confirmed, returns drained. Both send the same publishings to a quorum queue.
// "ratio" takes turns between the two, so that a noisy machine is noisy for
// both.
func BenchmarkPublisher(b *testing.B) {
	cfg := declared(b, "orders")
	raw, ours := newRawLoad(b, cfg), newLoad(b, cfg)
	rate := func(b *testing.B, took time.Duration) float64 { return float64(b.N*benchRound) / took.Seconds() }
	for _, one := range []struct {
		name  string
		round func(testing.TB)
	}{{"raw", raw.round}, {"ours", ours.round}} {
		b.Run(one.name, func(b *testing.B) {
			b.ReportAllocs()
			var took time.Duration
			for range b.N {
				took += timed(b, one.round)
			}
			b.ReportMetric(rate(b, took), "msg/s")
			purge(b, cfg)
		})
	}
	b.Run("ratio", func(b *testing.B) {
		var rawTook, oursTook time.Duration
		for range b.N {
			rawTook += timed(b, raw.round)
			oursTook += timed(b, ours.round)
		}
		b.ReportMetric(rate(b, rawTook), "raw-msg/s")
		b.ReportMetric(rate(b, oursTook), "ours-msg/s")
		b.ReportMetric(rawTook.Seconds()/oursTook.Seconds(), "ours/raw")
		purge(b, cfg)
	})
}

func timed(b *testing.B, round func(testing.TB)) time.Duration {
	start := time.Now()
	round(b)
	return time.Since(start)
}

func purge(b *testing.B, cfg wamqp.Config) {
	if _, err := rabbittest.Channel(b, rabbittest.URL()).QueuePurge(cfg.Queue.GenerateName("orders"), false); err != nil {
		b.Fatal(err)
	}
}

// benchMessages returns a batch as a relay makes it.
func benchMessages() []outbox.Publication {
	batch := batchOf("orders", benchBatch)
	for i := range batch {
		msg := batch[i].Message
		msg.Payload = make([]byte, 512)
		msg.Metadata = map[string]string{
			outbox.HeaderKey: msg.UUID + ":payment", outbox.HeaderScope: "tenant", outbox.HeaderCausation: msg.UUID,
			outbox.PropertyType: "orders", outbox.PropertyCorrelation: msg.UUID,
			outbox.PropertyTimestamp: time.Now().UTC().Format(time.RFC3339), outbox.PropertyContentType: "application/json",
		}
	}
	return batch
}

// A load is four callers of one Publisher.
type load struct {
	pub     *rabbitmq.Publisher
	batches [benchCallers][]outbox.Publication
}

func newLoad(b *testing.B, cfg wamqp.Config) *load {
	l := &load{pub: newPublisher(b, cfg, nil)}
	for i := range l.batches {
		l.batches[i] = benchMessages()
	}
	return l
}

func (l *load) round(t testing.TB) {
	var callers sync.WaitGroup
	for _, batch := range l.batches {
		callers.Go(func() {
			for range benchRound / benchCallers / benchBatch {
				for i, err := range l.pub.PublishBatch(context.Background(), batch) {
					if err != nil {
						t.Errorf("message %d: %v", i, err)
					}
				}
			}
		})
	}
	callers.Wait()
}

// A rawLoad is a loop on one channel of amqp091-go.
type rawLoad struct {
	channel     *amqp.Channel
	exchange    string
	publishings []amqp.Publishing
}

func newRawLoad(b *testing.B, cfg wamqp.Config) *rawLoad {
	l := &rawLoad{channel: rabbittest.Channel(b, rabbittest.URL()), exchange: cfg.Exchange.GenerateName("orders")}
	if err := l.channel.Confirm(false); err != nil {
		b.Fatal(err)
	}
	returns := l.channel.NotifyReturn(make(chan amqp.Return, benchWindow))
	go func() { // ends with the channel
		for r := range returns {
			b.Errorf("returned: %s", r.ReplyText)
		}
	}()
	for _, publication := range benchMessages() {
		p, err := rabbitmq.Marshaler{}.Marshal(publication.Message)
		if err != nil {
			b.Fatal(err)
		}
		l.publishings = append(l.publishings, p)
	}
	return l
}

func (l *rawLoad) round(t testing.TB) {
	var open []*amqp.DeferredConfirmation
	settle := func() {
		if !open[0].Wait() {
			t.Error("nacked")
		}
		open = open[1:]
	}
	for i := range benchRound {
		if len(open) >= benchWindow {
			settle()
		}
		confirm, err := l.channel.PublishWithDeferredConfirm(l.exchange, "", true, false, l.publishings[i%benchBatch])
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, confirm)
	}
	for len(open) > 0 {
		settle()
	}
}
