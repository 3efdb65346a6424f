package rabbitmq_test

import (
	"slices"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/rabbitmq"
)

// benchBacklog is how many messages a variant consumes in one round.
const benchBacklog = 10_000

// BenchmarkAcks compares a subscription that collects its acks with one that sends
// them one by one, and with the bare library. Each consumes the same backlog of a
// quorum queue, with a prefetch of 64 and acks at once. They take turns, and the
// ratios are medians over the rounds, because the machine and the broker are seldom
// at rest. Run it with -benchtime=20x.
func BenchmarkAcks(b *testing.B) {
	cfg := declared(b, "backlog")
	pub := newPublisher(b, cfg, nil)
	variants := []func() time.Duration{
		func() time.Duration { return consumeBare(b, cfg) },
		func() time.Duration { return consumeBacklog(b, cfg, 1) },
		func() time.Duration { return consumeBacklog(b, cfg, 0) },
	}
	const bare, single, collected = 0, 1, 2
	var rates [3][]float64
	round := 0
	for b.Loop() {
		for i := range variants {
			v := (round + i) % len(variants)
			mustPublish(b, pub, "backlog", benchBacklog)
			rates[v] = append(rates[v], benchBacklog/variants[v]().Seconds())
		}
		round++
	}
	ratio := func(v int) float64 {
		ratios := make([]float64, round)
		for i := range ratios {
			ratios[i] = rates[collected][i] / rates[v][i]
		}
		return median(ratios)
	}
	b.ReportMetric(ratio(single), "collected/single")
	b.ReportMetric(ratio(bare), "collected/bare")
	for v, name := range []string{"bare-msg/s", "single-msg/s", "collected-msg/s"} {
		b.ReportMetric(median(rates[v]), name)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// consumeBacklog returns the time of a subscription that sends limit acks at a time. 0 means its default.
func consumeBacklog(b *testing.B, cfg wamqp.Config, limit int) time.Duration {
	b.Helper()
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

func consumeBare(b *testing.B, cfg wamqp.Config) time.Duration {
	b.Helper()
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
	if err := ch.Close(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
