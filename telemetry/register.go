package telemetry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// A source is an object whose metrics are read at each collection.
type source interface {
	makeInstruments(*instruments)
	reportProcess(*report)                         // reads memory only
	reportDatabase(context.Context, *report) error // reports nothing if it returns an error
}

// register measures s at each collection until the registration is unregistered. It is the
// one engine behind all Register functions: they describe its errors and its timeout.
func register(scope string, s source, opts *Options) (metric.Registration, error) {
	o := opts.withDefaults()
	if o.Timeout < 0 {
		return nil, fmt.Errorf("telemetry: option Timeout: %s is negative", o.Timeout)
	}
	made := instruments{meter: o.MeterProvider.Meter(scope)}
	s.makeInstruments(&made)
	if made.err != nil {
		return nil, fmt.Errorf("telemetry: %w", made.err)
	}
	registration, err := made.meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		collect(ctx, s, &report{observer: to, attributes: o.Attributes}, o.Timeout)
		return nil // a reader would drop the whole process' measurements on an error
	}, made.observed...)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return registration, nil
}

// collect reports everything that s has. A failure of the database goes to OpenTelemetry's
// error handler.
func collect(ctx context.Context, s source, r *report, timeout time.Duration) {
	s.reportProcess(r)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.reportDatabase(ctx, r); err != nil {
		otel.Handle(fmt.Errorf("telemetry: %w", err))
	}
}

// A report takes the values of one collection and adds the attributes of [Options] to each.
type report struct {
	observer   metric.Observer
	attributes []attribute.KeyValue
}

func (r *report) setCount(of metric.Int64Observable, n int64, labels ...attribute.KeyValue) {
	r.observer.ObserveInt64(of, n, r.withLabels(labels))
}

func (r *report) setFlag(of metric.Int64Observable, on bool, labels ...attribute.KeyValue) {
	n := int64(0)
	if on {
		n = 1
	}
	r.setCount(of, n, labels...)
}

func (r *report) setSeconds(of metric.Float64Observable, d time.Duration, labels ...attribute.KeyValue) {
	r.observer.ObserveFloat64(of, d.Seconds(), r.withLabels(labels))
}

func (r *report) withLabels(labels []attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributes(append(slices.Clone(r.attributes), labels...)...)
}
