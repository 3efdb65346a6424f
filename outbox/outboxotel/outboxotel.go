// Package outboxotel tells OpenTelemetry how an outbox and its relay are doing.
//
// # Of the outbox
//
// These are read from the database when metrics are collected. Each process with a
// relay reports the same, so that a dashboard takes their maximum, never their sum.
//
//	sagamill.outbox.messages               {message}  state  stored: to be published next; delayed: not due yet; waiting: behind a
//	                                                         refused one; refused: tried again; dead: a person is needed.
//	                                                         Each counts up to outbox.CountLimit
//	sagamill.outbox.oldest_seconds         s          age of the oldest that is stored; 0 if there is none
//	sagamill.outbox.epoch                  {tenure}   how often the active relay has changed
//	sagamill.outbox.leaf_bytes             By         leaf  each table of the log, with indexes
//	sagamill.outbox.oldest_writer_seconds  s          how long the oldest transaction is open that holds the log back; 0 if there is none
//
// # Of this process's relay
//
//	sagamill.outbox.active           {relay}    1 if it is the active one, else 0: over all processes the sum is 1
//	sagamill.outbox.published        {message}  confirmed and not returned
//	sagamill.outbox.refusals         {refusal}  by the broker
//	sagamill.outbox.dead_letters     {message}  became dead letters
//	sagamill.outbox.queued           {message}  were held behind a refused one
//	sagamill.outbox.unavailable      {call}     calls of the publisher without an answer for some message
//	sagamill.outbox.confirms         {call}     le  calls of the publisher that took at most le seconds; le="+Inf" is all of them
//	sagamill.outbox.confirm_seconds  s          time in them
//
// An exporter to Prometheus makes sagamill_outbox_messages, sagamill_outbox_published_total
// and so on of these names.
//
// Confirms is a histogram in the form that Prometheus has for it, whose function
// histogram_quantile takes rate(sagamill_outbox_confirms_total[5m]). (OpenTelemetry has no
// histogram that is read at a collection, and package outbox does not know OpenTelemetry.)
//
// # Labels
//
// States, leaves and bounds are fixed. Who has the lease, topics and keys are no labels:
// the command sagamill outbox status tells.
//
// # Traces
//
// A [Tracer] gives a message the trace of the context in which it is written. It
// travels as the headers traceparent and tracestate, and they stay as they are on
// the whole way, also when the message is published twice. Two kinds of spans are
// children of the writer's:
//
//	publish <topic>   producer  the call of the publisher that the message was part of, up to the broker's confirm; one for each attempt
//	process <step>    consumer  by package consumerotel, in the receiving service
//
// A message of a trace that is not sampled makes no span, and a message without one
// nothing at all. Attributes: those of OpenTelemetry's conventions for messaging, and
// sagamill.type, sagamill.step (of the message), sagamill.attempt, sagamill.batch (messages
// in the call). When the broker refuses a message or does not answer, the span has
// the status Error and error.type says which; the broker's text stays in the log.
// There are no payloads and no keys.
package outboxotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/outbox"
)

// scopeName names the instrumentation.
const scopeName = "github.com/sagamill/sagamill/outbox/outboxotel"

// The labels.
const (
	keyState = attribute.Key("state")
	keyLeaf  = attribute.Key("leaf")
	keyBound = attribute.Key("le")
)

// defaultTimeout is less than any reader's own.
const defaultTimeout = 2 * time.Second

// Options are what most callers leave alone.
type Options struct {
	MeterProvider metric.MeterProvider // default: the global one

	// Timeout is how long a collection waits for the database at most.
	// Default: 2 s.
	Timeout time.Duration

	// Attributes are of every measurement. A process with several relays tells
	// them apart by one, such as the service's name. Default: none.
	Attributes []attribute.KeyValue
}

// Register lets relay be measured at each collection, until the registration is
// unregistered. It starts nothing, and relay need not run: what the database
// tells is told in any case. A nil opts means the defaults. An error is about an
// option, or the meter provider's about an instrument.
//
// When the database does not answer, its part is missing from the collection, the
// error goes to OpenTelemetry's error handler, and everything else is collected:
// the error of a callback would make a reader drop the measurements of the whole
// process.
func Register(relay *outbox.Relay, opts *Options) (metric.Registration, error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if relay == nil {
		return nil, errors.New("outboxotel: Register needs a relay")
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("outboxotel: option Timeout: %s is negative", o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	r := reporter{relay: relay, timeout: o.Timeout, attributes: slices.Clone(o.Attributes)}
	meter := o.MeterProvider.Meter(scopeName)
	all, err := r.instruments(meter)
	if err != nil {
		return nil, fmt.Errorf("outboxotel: %w", err)
	}
	registration, err := meter.RegisterCallback(r.report, all...)
	if err != nil {
		return nil, fmt.Errorf("outboxotel: %w", err)
	}
	return registration, nil
}

// A reporter measures one relay.
type reporter struct {
	relay      *outbox.Relay
	timeout    time.Duration
	attributes []attribute.KeyValue

	messages, epoch, leaf, active, stalled                   metric.Int64ObservableGauge
	oldest, writer                                           metric.Float64ObservableGauge
	published, refusals, dead, queued, unavailable, confirms metric.Int64ObservableCounter
	deferred                                                 metric.Int64ObservableCounter
	confirmSeconds                                           metric.Float64ObservableCounter
}

// instruments makes them.
func (r *reporter) instruments(meter metric.Meter) ([]metric.Observable, error) {
	b := builder{meter: meter}
	b.gauge(&r.messages, "sagamill.outbox.messages", "{message}", "Messages that are not published, by state.")
	b.seconds(&r.oldest, "sagamill.outbox.oldest_seconds", "Age of the oldest message that is to be published next.")
	b.gauge(&r.epoch, "sagamill.outbox.epoch", "{tenure}", "How often the active relay has changed.")
	b.gauge(&r.leaf, "sagamill.outbox.leaf_bytes", "By", "Size of each table of the log.")
	b.seconds(&r.writer, "sagamill.outbox.oldest_writer_seconds", "How long the oldest transaction is open that has written.")
	b.gauge(&r.active, "sagamill.outbox.active", "{relay}", "Whether this relay is the active one.")
	b.counter(&r.published, "sagamill.outbox.published", "{message}", "Messages that the broker has confirmed and not returned.")
	b.counter(&r.refusals, "sagamill.outbox.refusals", "{refusal}", "Refusals of the broker.")
	b.counter(&r.dead, "sagamill.outbox.dead_letters", "{message}", "Messages that became dead letters.")
	b.counter(&r.queued, "sagamill.outbox.queued", "{message}", "Messages that were held behind a refused or deferred one.")
	b.gauge(&r.stalled, "sagamill.outbox.stalled", "{topic}", "Topics that the broker takes no messages of, while it takes others.")
	b.counter(&r.deferred, "sagamill.outbox.deferred", "{message}", "Times that a message was kept aside because its topic took none.")
	b.counter(&r.unavailable, "sagamill.outbox.unavailable", "{call}", "Calls of the publisher without an answer.")
	b.counter(&r.confirms, "sagamill.outbox.confirms", "{call}", "Calls of the publisher that took at most le seconds.")
	b.sum(&r.confirmSeconds, "sagamill.outbox.confirm_seconds", "Time in calls of the publisher.")
	return b.all, b.err
}

// report is called at each collection. It never returns an error: see [Register].
func (r *reporter) report(ctx context.Context, o metric.Observer) error {
	r.reportProcess(o)
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	s, err := r.relay.Stats(ctx)
	if err != nil {
		otel.Handle(fmt.Errorf("outboxotel: %w", err))
		return nil
	}
	r.reportDatabase(o, s)
	return nil
}

func (r *reporter) reportProcess(o metric.Observer) {
	c := r.relay.Counters()
	active := int64(0)
	if c.Active {
		active = 1
	}
	plain := r.with()
	o.ObserveInt64(r.active, active, plain)
	o.ObserveInt64(r.published, int64(c.Published), plain)
	o.ObserveInt64(r.refusals, int64(c.Refused), plain)
	o.ObserveInt64(r.dead, int64(c.Dead), plain)
	o.ObserveInt64(r.queued, int64(c.Queued), plain)
	o.ObserveInt64(r.stalled, int64(c.Stalled), plain)
	o.ObserveInt64(r.deferred, int64(c.Deferred), plain)
	o.ObserveInt64(r.unavailable, int64(c.Unavailable), plain)
	for _, b := range c.Confirm.Buckets {
		o.ObserveInt64(r.confirms, int64(b.Count), r.with(keyBound.String(strconv.FormatFloat(b.AtMost.Seconds(), 'f', -1, 64))))
	}
	o.ObserveInt64(r.confirms, int64(c.Confirm.Count), r.with(keyBound.String("+Inf")))
	o.ObserveFloat64(r.confirmSeconds, c.Confirm.Sum.Seconds(), plain)
}

func (r *reporter) reportDatabase(o metric.Observer, s outbox.Stats) {
	for state, n := range map[string]int{"stored": s.Stored, "delayed": s.Delayed, "waiting": s.Waiting, "refused": s.Refused, "dead": s.Dead} {
		o.ObserveInt64(r.messages, int64(n), r.with(keyState.String(state)))
	}
	for leaf, size := range s.Leaves {
		o.ObserveInt64(r.leaf, size, r.with(keyLeaf.String(leaf)))
	}
	plain := r.with()
	o.ObserveFloat64(r.oldest, s.Oldest.Seconds(), plain)
	o.ObserveInt64(r.epoch, s.Epoch, plain)
	o.ObserveFloat64(r.writer, s.OldestWriter.Seconds(), plain)
}

// with returns labels beside those of every measurement.
func (r *reporter) with(labels ...attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributes(append(slices.Clone(r.attributes), labels...)...)
}

// A builder makes instruments and keeps the first error.
type builder struct {
	meter metric.Meter
	all   []metric.Observable
	err   error
}

func (b *builder) gauge(g *metric.Int64ObservableGauge, name, unit, about string) {
	made, err := b.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(about))
	*g = made
	b.keep(made, err)
}

func (b *builder) seconds(g *metric.Float64ObservableGauge, name, about string) {
	made, err := b.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(about))
	*g = made
	b.keep(made, err)
}

func (b *builder) counter(c *metric.Int64ObservableCounter, name, unit, about string) {
	made, err := b.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
	*c = made
	b.keep(made, err)
}

func (b *builder) sum(c *metric.Float64ObservableCounter, name, about string) {
	made, err := b.meter.Float64ObservableCounter(name, metric.WithUnit("s"), metric.WithDescription(about))
	*c = made
	b.keep(made, err)
}

func (b *builder) keep(made metric.Observable, err error) {
	b.all = append(b.all, made)
	if b.err == nil {
		b.err = err
	}
}
