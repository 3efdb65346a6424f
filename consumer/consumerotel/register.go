package consumerotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/consumer"
)

// defaultTimeout is less than any reader's own.
const defaultTimeout = 2 * time.Second

// RegisterOptions are what most callers leave alone.
type RegisterOptions struct {
	MeterProvider metric.MeterProvider // default: the global one

	// Timeout is how long a collection waits for the database at most.
	// Default: 2 s.
	Timeout time.Duration

	// Attributes are of every measurement, as those of [Options]. Default: none.
	Attributes []attribute.KeyValue
}

// Register lets c be measured at each collection, until the registration is
// unregistered. It starts nothing, and c need not run. A nil opts means the
// defaults. An error is about an option, or the meter provider's about an
// instrument.
//
// When the database does not answer, its part is missing from the collection, the
// error goes to OpenTelemetry's error handler, and everything else is collected:
// the error of a callback would make a reader drop the measurements of the whole
// process.
func Register(c *consumer.Consumer, opts *RegisterOptions) (metric.Registration, error) {
	o := RegisterOptions{}
	if opts != nil {
		o = *opts
	}
	if c == nil {
		return nil, errors.New("consumerotel: Register needs a consumer")
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("consumerotel: option Timeout: %s is negative", o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	r := reporter{consumer: c, timeout: o.Timeout, attributes: slices.Clone(o.Attributes)}
	registration, err := r.register(o.MeterProvider.Meter(scopeName))
	if err != nil {
		return nil, fmt.Errorf("consumerotel: %w", err)
	}
	return registration, nil
}

// A reporter measures one consumer.
type reporter struct {
	consumer   *consumer.Consumer
	timeout    time.Duration
	attributes []attribute.KeyValue

	inflight, subscribed, messages metric.Int64ObservableGauge
	cancelled                      metric.Int64ObservableCounter
	oldest, overdue                metric.Float64ObservableGauge
}

func (r *reporter) register(meter metric.Meter) (metric.Registration, error) {
	var errs [6]error
	r.inflight, errs[0] = meter.Int64ObservableGauge("sagamill.consumer.inflight", metric.WithUnit("{attempt}"),
		metric.WithDescription("Handlers that run."))
	r.messages, errs[1] = meter.Int64ObservableGauge("sagamill.parked.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Messages that are parked, by state, step and reason."))
	r.oldest, errs[2] = meter.Float64ObservableGauge("sagamill.parked.oldest_seconds", metric.WithUnit("s"),
		metric.WithDescription("Time since the first of them was parked."))
	r.overdue, errs[3] = meter.Float64ObservableGauge("sagamill.parked.overdue_seconds", metric.WithUnit("s"),
		metric.WithDescription("How long a parked message has been due that nobody has run."))
	r.subscribed, errs[4] = meter.Int64ObservableGauge("sagamill.consumer.subscribed", metric.WithUnit("{subscription}"),
		metric.WithDescription("Whether the broker delivers what comes to the topic: 1 or 0."))
	r.cancelled, errs[5] = meter.Int64ObservableCounter("sagamill.consumer.cancelled", metric.WithUnit("{subscription}"),
		metric.WithDescription("Subscriptions that the broker has ended, as when their queue was deleted."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(r.report, r.inflight, r.subscribed, r.cancelled, r.messages, r.oldest, r.overdue)
}

// report is called at each collection. It never returns an error: see [Register].
func (r *reporter) report(ctx context.Context, o metric.Observer) error {
	r.reportCounters(o)
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	s, err := r.consumer.Stats(ctx)
	if err != nil {
		otel.Handle(fmt.Errorf("consumerotel: %w", err))
		return nil
	}
	o.ObserveFloat64(r.overdue, s.Overdue.Seconds(), r.with())
	for i := range s.Parked {
		of := r.of(&s.Parked[i])
		o.ObserveInt64(r.messages, int64(s.Parked[i].Messages), of)
		o.ObserveFloat64(r.oldest, s.Parked[i].Oldest.Seconds(), of)
	}
	return nil
}

// reportCounters measures what needs no database.
func (r *reporter) reportCounters(o metric.Observer) {
	c := r.consumer.Counters()
	o.ObserveInt64(r.inflight, int64(c.InFlight), r.with())
	for _, s := range c.Subscriptions {
		served := int64(0)
		if s.Served {
			served = 1
		}
		o.ObserveInt64(r.subscribed, served, r.with(keyTopic.String(s.Topic)))
		o.ObserveInt64(r.cancelled, int64(s.Cancelled), r.with(keyTopic.String(s.Topic)))
	}
}

// of returns the labels of p.
func (r *reporter) of(p *consumer.ParkedStats) metric.ObserveOption {
	all := []attribute.KeyValue{keyState.String(p.State()), keyReason.String(string(p.Reason))}
	if p.Step != "" {
		all = append(all, keyStep.String(p.Step), keyKind.String(kind(p.Undo)))
	}
	return r.with(all...)
}

// with returns labels beside those of every measurement.
func (r *reporter) with(labels ...attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributes(append(slices.Clone(r.attributes), labels...)...)
}
