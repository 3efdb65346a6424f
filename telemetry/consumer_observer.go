package telemetry

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
)

// A ConsumerObserver is a [consumer.Observer] that traces and counts deliveries. It serves any
// number of consumers concurrently.
type ConsumerObserver struct {
	tracer trace.Tracer
	common []attribute.KeyValue // of each span
	keys   bool

	metrics consumerMetrics
}

var _ consumer.Observer = (*ConsumerObserver)(nil)

// NewConsumerObserver returns a ConsumerObserver. It starts nothing. A nil opts means the
// defaults. An error comes from the meter provider and is about an instrument.
func NewConsumerObserver(opts *Options) (*ConsumerObserver, error) {
	options := opts.withDefaults()
	common := []attribute.KeyValue{spanSystem.String(options.System), spanOperationType.String("process")}
	o := &ConsumerObserver{
		tracer: options.TracerProvider.Tracer(scopeConsumer), common: append(common, options.Attributes...), keys: options.Keys,
		metrics: consumerMetrics{attributes: options.Attributes},
	}
	if err := o.metrics.makeCounters(options.MeterProvider.Meter(scopeConsumer)); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return o, nil
}

// Enter implements [consumer.Observer]: the attempt's span begins.
func (o *ConsumerObserver) Enter(ctx context.Context, in *consumer.Delivery) consumer.Entry {
	_, span := o.startInTrace(ctx, in)
	return entry{span, in}
}

// Observe implements [consumer.Observer]: the attempt's span ends, and e is counted.
func (o *ConsumerObserver) Observe(ctx context.Context, e consumer.Event) {
	attempt, entered := e.Entry.(entry)
	if entered {
		ctx = attempt.Context(ctx) // links exemplars to the span
	}
	o.metrics.countEvent(ctx, &e)
	if entered {
		o.endSpan(attempt.Span, &e)
	} else {
		o.addArrivalSpan(ctx, &e)
	}
}

// Ended implements [consumer.Observer].
func (o *ConsumerObserver) Ended(ctx context.Context, t consumer.Transaction) {
	o.metrics.countTransaction(ctx, &t)
}
