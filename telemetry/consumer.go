package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/consumer"
)

// RegisterConsumer measures c, and the parked messages of its schema, at each collection until
// the registration is unregistered. It starts nothing, and c need not run. A nil opts means the
// defaults. An error is about an argument, or comes from the meter provider.
//
// If the database does not answer within [Options].Timeout, the parked messages are missing
// from that collection and OpenTelemetry's error handler receives the error. All other metrics
// are collected.
func RegisterConsumer(c *consumer.Consumer, opts *Options) (metric.Registration, error) {
	if c == nil {
		return nil, errors.New("telemetry: RegisterConsumer needs a consumer")
	}
	return register(scopeConsumer, &consumerSource{consumer: c}, opts)
}

// A consumerSource reads one consumer and the parked messages of its schema.
type consumerSource struct {
	consumer *consumer.Consumer

	inflight, paused, subscribed, messages metric.Int64ObservableGauge
	cancelled                              metric.Int64ObservableCounter
	oldest, overdue                        metric.Float64ObservableGauge
}

func (s *consumerSource) makeInstruments(i *instruments) {
	i.observeGauge(&s.inflight, "sagamill.consumer.inflight", "{attempt}", "Handlers that run.")
	i.observeGauge(&s.paused, "sagamill.consumer.paused", "{consumer}", "Whether the queues are handed over because the database is lost: 1 or 0.")
	i.observeGauge(&s.messages, "sagamill.parked.messages", "{message}", "Messages that are parked, by state, step and reason.")
	i.observeSecondsGauge(&s.oldest, "sagamill.parked.oldest_seconds", "Time since the first of them was parked.")
	i.observeSecondsGauge(&s.overdue, "sagamill.parked.overdue_seconds", "How long a parked message has been due that nobody has run.")
	i.observeGauge(&s.subscribed, "sagamill.consumer.subscribed", "{subscription}", "Whether the broker delivers what comes to the topic: 1 or 0.")
	i.observeCounter(&s.cancelled, "sagamill.consumer.cancelled", "{subscription}", "Subscriptions that the broker has ended because their queue was deleted.")
}

func (s *consumerSource) reportProcess(r *report) {
	c := s.consumer.Counters()
	r.setCount(s.inflight, int64(c.InFlight))
	r.setFlag(s.paused, c.Paused)
	for _, subscription := range c.Subscriptions {
		r.setFlag(s.subscribed, subscription.Served, labelTopic.String(subscription.Topic))
		r.setCount(s.cancelled, int64(subscription.Cancelled), labelTopic.String(subscription.Topic))
	}
}

func (s *consumerSource) reportDatabase(ctx context.Context, r *report) error {
	stats, err := s.consumer.Stats(ctx)
	if err != nil {
		return err
	}
	r.setSeconds(s.overdue, stats.Overdue)
	for i := range stats.Parked {
		labels := parkedLabels(&stats.Parked[i])
		r.setCount(s.messages, int64(stats.Parked[i].Messages), labels...)
		r.setSeconds(s.oldest, stats.Parked[i].Oldest, labels...)
	}
	return nil
}

// parkedLabels returns the labels of p. A message that could not be read has no step and no kind.
func parkedLabels(p *consumer.ParkedStats) []attribute.KeyValue {
	labels := []attribute.KeyValue{labelState.String(p.State()), labelReason.String(string(p.Reason))}
	if p.Step != "" {
		labels = append(labels, labelStep.String(p.Step), labelKind.String(stepKind(p.Undo)))
	}
	return labels
}
