package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// benchBacklog is how many messages one run of a variant consumes.
const benchBacklog = 20_000

// BenchmarkAcks compares a subscription whose acks are sent one by one with one
// that collects them, and both with the bare library. Every variant consumes the
// same backlog of a quorum queue with a prefetch of 64 and acks at once. Run it
// with -benchtime=5x.
func BenchmarkAcks(b *testing.B) {
	cfg := declared(b, "backlog")
	pub := newPublisher(b, cfg, nil)
	subscription := func(limit int) func() time.Duration {
		return func() time.Duration {
			sub, err := rabbitmq.NewSubscriber(cfg, fast())
			if err != nil {
				b.Fatal(err)
			}
			if limit > 0 {
				sub.CollectAcks(limit, time.Millisecond)
			}
			began := time.Now()
			messages, err := sub.Subscribe(b.Context(), "backlog")
			if err != nil {
				b.Fatal(err)
			}
			for range benchBacklog {
				next(b, messages).Ack()
			}
			sub.Close() // all acks are sent
			return time.Since(began)
		}
	}
	variants := []struct {
		name string
		run  func() time.Duration
	}{
		{"single", subscription(1)},
		{"collected", subscription(0)},
		{"bare", func() time.Duration {
			ch := rabbittest.Channel(b, rabbittest.URL())
			began := time.Now()
			if err := ch.Qos(64, 0, false); err != nil {
				b.Fatal(err)
			}
			deliveries, err := ch.Consume(cfg.Queue.GenerateName("backlog"), "", false, false, false, false, nil)
			if err != nil {
				b.Fatal(err)
			}
			for range benchBacklog {
				if err := (<-deliveries).Ack(false); err != nil {
					b.Fatal(err)
				}
			}
			ch.Close()
			return time.Since(began)
		}},
	}
	spent := map[string]time.Duration{}
	for b.Loop() {
		for _, v := range variants {
			mustPublish(b, pub, "backlog", benchBacklog)
			spent[v.name] += v.run()
		}
	}
	for _, v := range variants {
		b.ReportMetric(float64(b.N*benchBacklog)/spent[v.name].Seconds(), v.name+"-msg/s")
	}
	b.ReportMetric(spent["single"].Seconds()/spent["collected"].Seconds(), "collected/single")
	b.ReportMetric(spent["bare"].Seconds()/spent["collected"].Seconds(), "collected/bare")
}
