package telemetry

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// defaultTimeout is shorter than the timeout of any known metric reader.
const defaultTimeout = 2 * time.Second

// Options are common to all functions of this package, so that a service sets them once.
// Each function reads the fields that concern it.
type Options struct {
	MeterProvider  metric.MeterProvider // provider of the metrics; default: OpenTelemetry's global provider
	TracerProvider trace.TracerProvider // provider of the traces; default: OpenTelemetry's global provider

	// System is the attribute messaging.system of the spans, such as rabbitmq. Default: sagamill.
	System string

	// Keys adds the scope and the key of a message to its spans. Callers choose both, so
	// they may be personal data. Default: spans have neither scope nor key.
	Keys bool

	// Attributes are added to every measurement, and to every span that this package starts.
	// A process with several relays, consumers or orchestrators tells them apart by one, such
	// as the service's name. Default: none.
	Attributes []attribute.KeyValue

	// Timeout limits how long a collection of metrics waits for the database. Default: 2 s.
	Timeout time.Duration
}

// withDefaults returns a copy of o, which may be nil, with each default in place.
func (o *Options) withDefaults() Options {
	filled := Options{}
	if o != nil {
		filled = *o
	}
	if filled.MeterProvider == nil {
		filled.MeterProvider = otel.GetMeterProvider()
	}
	if filled.TracerProvider == nil {
		filled.TracerProvider = otel.GetTracerProvider()
	}
	if filled.System == "" {
		filled.System = "sagamill"
	}
	if filled.Timeout == 0 {
		filled.Timeout = defaultTimeout
	}
	filled.Attributes = slices.Clone(filled.Attributes)
	return filled
}

// WithAttribute returns a copy of o, which may be nil, with one more of Attributes.
func (o *Options) WithAttribute(name, value string) *Options {
	with := Options{}
	if o != nil {
		with = *o
	}
	with.Attributes = append(slices.Clone(with.Attributes), attribute.String(name, value))
	return &with
}
