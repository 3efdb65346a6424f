// Package idemotel tells OpenTelemetry what an [idemkey.Middleware] does.
//
// # Metrics
//
//	idemkey.requests          {request}  http.route, result  every covered request
//	idemkey.outcomes          {outcome}  http.route, outcome  every handler that ran
//	idemkey.takeovers         {request}  http.route  ran, or was recovered, after one whose owner had vanished
//	idemkey.inflight          {request}  http.route  handlers that run now
//	idemkey.lease_lost        {request}  http.route  ran to its end after another owner had taken over
//	idemkey.commit_ambiguous  {commit}   http.route  the commit's result was lost and not found
//	idemkey.handler_seconds   s          http.route  time in the handler
//	idemkey.begin_seconds     s          http.route  time of the claim
//	idemkey.stored_bytes      By         http.route  bodies that were kept, by size
//	idemkey.oversize          {request}  http.route, part  a body over its limit: request and response were refused, tombstone was sent and not kept
//	idemkey.store_errors      {error}    http.route, op  the store failed; op is begin, commit, reject, release or renew
//	idemkey.gc_deleted        {record}   expired records removed, by an idemkey.Sweeper with this Observer
//
// The label http.route is the pattern of the ServeMux. It is missing where the middleware
// is outside of the mux, or of a router of another kind that has not routed yet.
//
// An exporter to Prometheus makes idemkey_requests_total, idemkey_handler_seconds
// and so on of these names. It adds no unit to a name that has it.
//
// # Labels
//
// A route is the pattern under which a router mounted the handler, which is one
// of few; results, outcomes, parts and ops are fixed. Keys and scopes are the
// callers' and are no label, nor are they in the span event.
//
// # Traces
//
// The span that is active in the request's context gets one event, idemkey.decision,
// with result, attempt, outcome, code and status, and with took_over and oversize
// where they are so. So tracing goes outside of the
// middleware; the package starts no span and leaves the span's status alone.
package idemotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/idemkey"
)

// scopeName names the instrumentation.
const scopeName = "github.com/sagamill/sagamill/idemkey/idemotel"

// The labels.
const (
	keyRoute   = attribute.Key("http.route")
	keyResult  = attribute.Key("result")
	keyOutcome = attribute.Key("outcome")
	keyPart    = attribute.Key("part")
	keyOp      = attribute.Key("op")
)

// eventName and its attributes are of the span event.
const (
	eventName    = "idemkey.decision"
	eventResult  = attribute.Key("idemkey.result")
	eventAttempt = attribute.Key("idemkey.attempt")
	eventOutcome = attribute.Key("idemkey.outcome")
	eventCode    = attribute.Key("idemkey.code")
	eventTook    = attribute.Key("idemkey.took_over")
	eventSize    = attribute.Key("idemkey.oversize")
	eventStatus  = attribute.Key("http.response.status_code")
)

// Bounds of the histograms. OpenTelemetry's own are for milliseconds.
var (
	secondBounds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
	byteBounds   = []float64{0, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

// Options configure an [Observer].
type Options struct {
	MeterProvider metric.MeterProvider // default: the global one
}

// An Observer is an [idemkey.Observer] that counts and traces. It is safe for
// concurrent use and serves any number of middlewares and sweepers.
type Observer struct {
	requests, outcomes, takeovers, lost, ambiguous, oversize, storeErrors, deleted metric.Int64Counter

	inflight       metric.Int64UpDownCounter
	stored         metric.Int64Histogram
	handler, begin metric.Float64Histogram
}

var (
	_ idemkey.Observer      = (*Observer)(nil)
	_ idemkey.StartObserver = (*Observer)(nil)
	_ idemkey.StoreObserver = (*Observer)(nil)
	_ idemkey.SweepObserver = (*Observer)(nil)
)

// New returns an Observer. A nil opts means the defaults. An error is the meter
// provider's, about an instrument. New starts nothing.
func New(opts *Options) (*Observer, error) {
	provider := otel.GetMeterProvider()
	if opts != nil && opts.MeterProvider != nil {
		provider = opts.MeterProvider
	}
	o, b := &Observer{}, builder{meter: provider.Meter(scopeName)}
	b.counter(&o.requests, "idemkey.requests", "{request}", "Covered requests.")
	b.counter(&o.outcomes, "idemkey.outcomes", "{outcome}", "Handlers that ran.")
	b.counter(&o.takeovers, "idemkey.takeovers", "{request}", "Requests that followed one whose owner had vanished.")
	b.gauge(&o.inflight, "idemkey.inflight", "{request}", "Handlers that run.")
	b.counter(&o.lost, "idemkey.lease_lost", "{request}", "Requests that ended after another owner had taken over.")
	b.counter(&o.ambiguous, "idemkey.commit_ambiguous", "{commit}", "Commits whose result was lost and not found.")
	b.counter(&o.oversize, "idemkey.oversize", "{request}", "Bodies over their limit.")
	b.counter(&o.storeErrors, "idemkey.store_errors", "{error}", "Failures of the store.")
	b.counter(&o.deleted, "idemkey.gc_deleted", "{record}", "Expired records that were removed.")
	b.histogram(&o.handler, "idemkey.handler_seconds", "Time in the handler.")
	b.histogram(&o.begin, "idemkey.begin_seconds", "Time of the claim.")
	b.sizes(&o.stored, "idemkey.stored_bytes", "Bodies that were kept.")
	if b.err != nil {
		return nil, fmt.Errorf("idemotel: %w", b.err)
	}
	return o, nil
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

func (b *builder) gauge(g *metric.Int64UpDownCounter, name, unit, about string) {
	var err error
	*g, err = b.meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(about))
	b.keep(err)
}

func (b *builder) histogram(h *metric.Float64Histogram, name, about string) {
	var err error
	*h, err = b.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
		metric.WithExplicitBucketBoundaries(secondBounds...))
	b.keep(err)
}

func (b *builder) sizes(h *metric.Int64Histogram, name, about string) {
	var err error
	*h, err = b.meter.Int64Histogram(name, metric.WithUnit("By"), metric.WithDescription(about),
		metric.WithExplicitBucketBoundaries(byteBounds...))
	b.keep(err)
}

func (b *builder) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

// Observe counts e and adds it to the span in ctx.
func (o *Observer) Observe(ctx context.Context, e idemkey.Event) {
	route := routeLabel(e.Route)
	with := func(labels ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributes(append(route, labels...)...)
	}
	o.requests.Add(ctx, 1, with(keyResult.String(string(e.Result))))
	if e.Begin > 0 { // refused before the claim otherwise
		o.begin.Record(ctx, e.Begin.Seconds(), with())
	}
	if part := oversized(e); part != "" {
		o.oversize.Add(ctx, 1, with(keyPart.String(part)))
	}
	if e.TookOver {
		o.takeovers.Add(ctx, 1, with())
	}
	if e.Started {
		o.inflight.Add(ctx, -1, with())
	}
	if e.Attempt > 0 {
		o.ran(ctx, e, with)
	}
	o.trace(ctx, e)
}

// ran counts what is only told of a handler that ran.
func (o *Observer) ran(ctx context.Context, e idemkey.Event, with func(...attribute.KeyValue) metric.MeasurementOption) {
	o.handler.Record(ctx, e.Handler.Seconds(), with())
	o.outcomes.Add(ctx, 1, with(keyOutcome.String(string(e.Outcome))))
	switch e.Outcome {
	case idemkey.OutcomeLost:
		o.lost.Add(ctx, 1, with())
	case idemkey.OutcomeUnknown:
		o.ambiguous.Add(ctx, 1, with())
	case idemkey.OutcomeKept, idemkey.OutcomeRejected:
		if e.Result != idemkey.ResultKeyless {
			o.stored.Record(ctx, int64(e.Stored), with())
		}
	}
}

// Started counts a handler that runs, until it is observed.
func (o *Observer) Started(ctx context.Context, route string) {
	o.inflight.Add(ctx, 1, metric.WithAttributes(routeLabel(route)...))
}

// StoreFailed counts a failure of the store. The error stays out: it may tell of addresses.
func (o *Observer) StoreFailed(ctx context.Context, route string, op idemkey.Op, _ error) {
	o.storeErrors.Add(ctx, 1, metric.WithAttributes(append(routeLabel(route), keyOp.String(string(op)))...))
}

// Swept counts removed records.
func (o *Observer) Swept(ctx context.Context, deleted int) { o.deleted.Add(ctx, int64(deleted)) }

// routeLabel returns no label for no route: an empty value would be one.
func routeLabel(route string) []attribute.KeyValue {
	if route == "" {
		return nil
	}
	return []attribute.KeyValue{keyRoute.String(route)}
}

// oversized says which body was over its limit.
func oversized(e idemkey.Event) string {
	switch {
	case e.Result == idemkey.ResultTooLarge:
		return "request"
	case e.Code == idemkey.CodeResponseTooLarge:
		return "response"
	case e.Oversize:
		return "tombstone"
	}
	return ""
}

// trace adds e to the active span. The error stays out: it may be a handler's own.
func (o *Observer) trace(ctx context.Context, e idemkey.Event) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{eventResult.String(string(e.Result))}
	if e.Attempt > 0 {
		attributes = append(attributes, eventAttempt.Int(e.Attempt), eventOutcome.String(string(e.Outcome)))
	}
	if e.Code != "" {
		attributes = append(attributes, eventCode.String(e.Code))
	}
	if e.Status != 0 { // a panic has none yet
		attributes = append(attributes, eventStatus.Int(e.Status))
	}
	if e.TookOver {
		attributes = append(attributes, eventTook.Bool(true))
	}
	if e.Oversize {
		attributes = append(attributes, eventSize.Bool(true))
	}
	span.AddEvent(eventName, trace.WithAttributes(attributes...))
}
