package consumerotel

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/consumer"
)

// The labels.
const (
	keyStep    = attribute.Key("step")
	keyKind    = attribute.Key("kind")
	keyOutcome = attribute.Key("outcome")
	keyReason  = attribute.Key("reason")
	keyTopic   = attribute.Key("topic")
	keyState   = attribute.Key("state")
)

// Bounds of the histograms. OpenTelemetry's own are for milliseconds.
var (
	secondBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
	batchBounds  = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// metrics are the instruments that are told of things as they happen.
type metrics struct {
	attributes []attribute.KeyValue
	known      sync.Map // labels → metric.MeasurementOption; few, see the package comment

	messages, attempts, rollbacks metric.Int64Counter
	handler, lag, transaction     metric.Float64Histogram
	batch                         metric.Int64Histogram
}

// labels are the values that tell series apart; empty ones are left out.
type labels struct{ step, kind, outcome, reason, class string }

// with returns l as a set, which is made once.
func (m *metrics) with(l labels) metric.MeasurementOption {
	if made, ok := m.known.Load(l); ok {
		return made.(metric.MeasurementOption)
	}
	all := slices.Clone(m.attributes)
	for _, label := range []attribute.KeyValue{
		keyStep.String(l.step), keyKind.String(l.kind), keyOutcome.String(l.outcome), keyReason.String(l.reason),
		keyError.String(l.class),
	} {
		if label.Value.AsString() != "" {
			all = append(all, label)
		}
	}
	made, _ := m.known.LoadOrStore(l, metric.WithAttributeSet(attribute.NewSet(all...)))
	return made.(metric.MeasurementOption)
}

// make makes the instruments.
func (m *metrics) make(meter metric.Meter) error {
	b := builder{meter: meter}
	b.counter(&m.messages, "sagamill.consumer.messages", "{message}", "Arrivals of messages, by what became of them.")
	b.counter(&m.attempts, "sagamill.consumer.attempts", "{attempt}", "Entries into handlers.")
	b.counter(&m.rollbacks, "sagamill.consumer.rollbacks", "{transaction}", "Transactions that were rolled back, or ended in a way that is not known.")
	b.seconds(&m.handler, "sagamill.consumer.handler_seconds", "Time in the handler.")
	b.seconds(&m.lag, "sagamill.consumer.lag_seconds", "Age of a message when its handler is entered for the first time.")
	b.seconds(&m.transaction, "sagamill.consumer.transaction_seconds", "Time of a transaction in which messages were handled.")
	var err error
	m.batch, err = meter.Int64Histogram("sagamill.consumer.batch", metric.WithUnit("{message}"),
		metric.WithDescription("Messages in a transaction."), metric.WithExplicitBucketBoundaries(batchBounds...))
	b.keep(err)
	return b.err
}

func (m *metrics) count(ctx context.Context, e *consumer.Event) {
	of := labels{step: e.Delivery.Step}
	if of.step != "" {
		of.kind = kind(e.Delivery.Undo)
	}
	counted := of
	counted.outcome, counted.reason = string(e.Outcome), string(e.Reason)
	m.messages.Add(ctx, 1, m.with(counted))
	if !e.Entered {
		return
	}
	plain := m.with(of)
	m.handler.Record(ctx, e.Ended.Sub(e.Began).Seconds(), plain)
	if e.Lag >= 0 {
		m.lag.Record(ctx, e.Lag.Seconds(), plain)
	}
	switch {
	case e.Reason == consumer.ReasonUnsettled:
		of.class = string(e.Reason)
	case e.Err != nil:
		of.class = errorClass(e.Err)
	}
	m.attempts.Add(ctx, 1, m.with(of))
}

func (m *metrics) ended(ctx context.Context, t *consumer.Transaction) {
	plain := m.with(labels{})
	m.transaction.Record(ctx, t.Time.Seconds(), plain)
	m.batch.Record(ctx, int64(t.Messages), plain)
	if t.Err != nil {
		m.rollbacks.Add(ctx, 1, plain)
	}
}

// A builder makes instruments and keeps the first error.
type builder struct {
	meter metric.Meter
	err   error
}

func (b *builder) counter(c *metric.Int64Counter, name, unit, about string) {
	var err error
	*c, err = b.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
	b.keep(err)
}

func (b *builder) seconds(h *metric.Float64Histogram, name, about string) {
	var err error
	*h, err = b.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
		metric.WithExplicitBucketBoundaries(secondBounds...))
	b.keep(err)
}

func (b *builder) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}
