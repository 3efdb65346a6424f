package consumerotel

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
)

// scopeName names the instrumentation.
const scopeName = "github.com/sagamill/sagamill/consumer/consumerotel"

// Options are what most callers leave alone.
type Options struct {
	TracerProvider trace.TracerProvider // default: the global one
	MeterProvider  metric.MeterProvider // default: the global one

	// System is messaging.system of the spans, such as rabbitmq. Default: sagamill.
	System string

	// Keys puts scope and key of a message into its spans. They are the callers'
	// and may be data of theirs. Default: they are in none.
	Keys bool

	// Attributes are of every span and measurement. A process with several
	// consumers tells them apart by one, such as the service's name. Default: none.
	Attributes []attribute.KeyValue
}

// An Observer is a [consumer.Observer] that traces and counts. It is safe for
// concurrent use and serves any number of consumers.
type Observer struct {
	tracer trace.Tracer
	common []attribute.KeyValue // of each span
	keys   bool

	metrics metrics
}

var _ consumer.Observer = (*Observer)(nil)

// New returns an Observer. A nil opts means the defaults. An error is the meter
// provider's, about an instrument. New starts nothing.
func New(opts *Options) (*Observer, error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.System == "" {
		o.System = "sagamill"
	}
	observer := &Observer{
		tracer: o.TracerProvider.Tracer(scopeName), keys: o.Keys,
		common:  append([]attribute.KeyValue{spanSystem.String(o.System), spanOperationType.String("process")}, o.Attributes...),
		metrics: metrics{attributes: slices.Clone(o.Attributes)},
	}
	if err := observer.metrics.make(o.MeterProvider.Meter(scopeName)); err != nil {
		return nil, fmt.Errorf("consumerotel: %w", err)
	}
	return observer, nil
}

// Enter implements [consumer.Observer]: the span begins.
func (o *Observer) Enter(ctx context.Context, in *consumer.Delivery) consumer.Entry {
	_, span := o.start(ctx, in)
	return entry{span, in}
}

// Observe implements [consumer.Observer]: the span ends, and e is counted.
func (o *Observer) Observe(ctx context.Context, e consumer.Event) {
	inside, entered := e.Entry.(entry)
	if entered {
		ctx = inside.Context(ctx) // exemplars are of the span
	}
	o.metrics.count(ctx, &e)
	if entered {
		o.end(inside.Span, &e)
	} else {
		o.short(ctx, &e)
	}
}

// Ended implements [consumer.Observer].
func (o *Observer) Ended(ctx context.Context, t consumer.Transaction) { o.metrics.ended(ctx, &t) }
