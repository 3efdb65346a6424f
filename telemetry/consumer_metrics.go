package telemetry

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/consumer"
)

// consumerMetrics are the metrics of deliveries, counted as they happen.
type consumerMetrics struct {
	attributes []attribute.KeyValue
	known      sync.Map // seriesLabels → metric.MeasurementOption; few, because all values are the program's

	messages, attempts, rollbacks metric.Int64Counter
	handler, lag, transaction     metric.Float64Histogram
	batch                         metric.Int64Histogram
}

// seriesLabels are the values that tell series apart. Empty ones are left out.
type seriesLabels struct{ step, kind, outcome, reason, class string }

// makeCounters returns the first error of meter.
func (m *consumerMetrics) makeCounters(meter metric.Meter) error {
	i := instruments{meter: meter}
	i.addCounter(&m.messages, "sagamill.consumer.messages", "{message}", "Arrivals of messages, by what became of them.")
	i.addCounter(&m.attempts, "sagamill.consumer.attempts", "{attempt}", "Entries into handlers.")
	i.addCounter(&m.rollbacks, "sagamill.consumer.rollbacks", "{transaction}", "Transactions that were rolled back, or ended in a way that is not known.")
	i.addSeconds(&m.handler, stepBounds, "sagamill.consumer.handler_seconds", "Time in the handler.")
	i.addSeconds(&m.lag, stepBounds, "sagamill.consumer.lag_seconds", "Age of a message when its handler is entered for the first time.")
	i.addSeconds(&m.transaction, stepBounds, "sagamill.consumer.transaction_seconds", "Time of a transaction in which messages were handled.")
	i.addSizes(&m.batch, batchBounds, "sagamill.consumer.batch", "{message}", "Messages in a transaction.")
	return i.err
}

// countEvent counts an arrival, and the attempt if it entered a handler.
func (m *consumerMetrics) countEvent(ctx context.Context, e *consumer.Event) {
	of := seriesLabels{step: e.Delivery.Step}
	if of.step != "" {
		of.kind = stepKind(e.Delivery.Undo)
	}
	arrival := of
	arrival.outcome, arrival.reason = string(e.Outcome), string(e.Reason)
	m.messages.Add(ctx, 1, m.withLabels(arrival))
	if !e.Entered {
		return
	}
	plain := m.withLabels(of)
	m.handler.Record(ctx, e.Ended.Sub(e.Began).Seconds(), plain)
	if e.Lag >= 0 {
		m.lag.Record(ctx, e.Lag.Seconds(), plain)
	}
	switch {
	case e.Reason == consumer.ReasonUnsettled:
		of.class = string(e.Reason)
	case e.Err != nil:
		of.class = classifyError(e.Err)
	}
	m.attempts.Add(ctx, 1, m.withLabels(of))
}

func (m *consumerMetrics) countTransaction(ctx context.Context, t *consumer.Transaction) {
	plain := m.withLabels(seriesLabels{})
	m.transaction.Record(ctx, t.Time.Seconds(), plain)
	m.batch.Record(ctx, int64(t.Messages), plain)
	if t.Err != nil {
		m.rollbacks.Add(ctx, 1, plain)
	}
}

// withLabels returns l as an attribute set. Each set is made once.
func (m *consumerMetrics) withLabels(l seriesLabels) metric.MeasurementOption {
	if made, ok := m.known.Load(l); ok {
		return made.(metric.MeasurementOption)
	}
	all := slices.Clone(m.attributes)
	for _, label := range []attribute.KeyValue{
		labelStep.String(l.step), labelKind.String(l.kind), labelOutcome.String(l.outcome), labelReason.String(l.reason),
		errorType.String(l.class),
	} {
		if label.Value.AsString() != "" {
			all = append(all, label)
		}
	}
	made, _ := m.known.LoadOrStore(l, metric.WithAttributeSet(attribute.NewSet(all...)))
	return made.(metric.MeasurementOption)
}
