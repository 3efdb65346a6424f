package telemetry

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/idemkey"
)

// An IdempotencyObserver is an [idemkey.Observer] that counts requests and adds an event to
// their spans. It serves any number of middlewares and sweepers concurrently.
type IdempotencyObserver struct {
	attributes []attribute.KeyValue

	requests, outcomes, takeovers, lost, ambiguous, oversize, storeErrors, deleted metric.Int64Counter

	inflight       metric.Int64UpDownCounter
	stored         metric.Int64Histogram
	handler, begin metric.Float64Histogram
}

var (
	_ idemkey.Observer      = (*IdempotencyObserver)(nil)
	_ idemkey.StartObserver = (*IdempotencyObserver)(nil)
	_ idemkey.StoreObserver = (*IdempotencyObserver)(nil)
	_ idemkey.SweepObserver = (*IdempotencyObserver)(nil)
)

// NewIdempotencyObserver returns an IdempotencyObserver. It starts nothing. A nil opts means
// the defaults. An error comes from the meter provider and is about an instrument.
func NewIdempotencyObserver(opts *Options) (*IdempotencyObserver, error) {
	options := opts.withDefaults()
	o, i := &IdempotencyObserver{attributes: options.Attributes}, instruments{meter: options.MeterProvider.Meter(scopeIdempotency)}
	i.addCounter(&o.requests, "idemkey.requests", "{request}", "Covered requests.")
	i.addCounter(&o.outcomes, "idemkey.outcomes", "{outcome}", "Handlers that ran.")
	i.addCounter(&o.takeovers, "idemkey.takeovers", "{request}", "Requests that followed one whose owner had vanished.")
	i.addUpDownCounter(&o.inflight, "idemkey.inflight", "{request}", "Handlers that run.")
	i.addCounter(&o.lost, "idemkey.lease_lost", "{request}", "Requests that ended after another owner had taken over.")
	i.addCounter(&o.ambiguous, "idemkey.commit_ambiguous", "{commit}", "Commits whose result was lost and not found.")
	i.addCounter(&o.oversize, "idemkey.oversize", "{request}", "Bodies over their limit.")
	i.addCounter(&o.storeErrors, "idemkey.store_errors", "{error}", "Failures of the store.")
	i.addCounter(&o.deleted, "idemkey.gc_deleted", "{record}", "Expired records that were removed.")
	i.addSeconds(&o.handler, requestBounds, "idemkey.handler_seconds", "Time in the handler.")
	i.addSeconds(&o.begin, requestBounds, "idemkey.begin_seconds", "Time of the claim.")
	i.addSizes(&o.stored, byteBounds, "idemkey.stored_bytes", "By", "Bodies that were kept.")
	if i.err != nil {
		return nil, fmt.Errorf("telemetry: %w", i.err)
	}
	return o, nil
}

// Observe implements [idemkey.Observer]. It counts e and adds it to the span in ctx.
func (o *IdempotencyObserver) Observe(ctx context.Context, e idemkey.Event) {
	plain := o.withLabels(e.Route)
	o.requests.Add(ctx, 1, o.withLabels(e.Route, labelResult.String(string(e.Result))))
	if e.Begin > 0 { // otherwise the request was rejected before the claim
		o.begin.Record(ctx, e.Begin.Seconds(), plain)
	}
	if part := oversizedPart(e); part != "" {
		o.oversize.Add(ctx, 1, o.withLabels(e.Route, labelPart.String(part)))
	}
	if e.TookOver {
		o.takeovers.Add(ctx, 1, plain)
	}
	if e.Started {
		o.inflight.Add(ctx, -1, plain)
	}
	if e.Attempt > 0 {
		o.countHandler(ctx, e, plain)
	}
	addDecision(ctx, e)
}

// countHandler counts an event of which the handler has run.
func (o *IdempotencyObserver) countHandler(ctx context.Context, e idemkey.Event, plain metric.MeasurementOption) {
	o.handler.Record(ctx, e.Handler.Seconds(), plain)
	o.outcomes.Add(ctx, 1, o.withLabels(e.Route, labelOutcome.String(string(e.Outcome))))
	switch e.Outcome {
	case idemkey.OutcomeLost:
		o.lost.Add(ctx, 1, plain)
	case idemkey.OutcomeUnknown:
		o.ambiguous.Add(ctx, 1, plain)
	case idemkey.OutcomeKept, idemkey.OutcomeRejected:
		if e.Result != idemkey.ResultKeyless {
			o.stored.Record(ctx, int64(e.Stored), plain)
		}
	}
}

// Started implements [idemkey.StartObserver]. The handler counts as in flight until Observe.
func (o *IdempotencyObserver) Started(ctx context.Context, route string) {
	o.inflight.Add(ctx, 1, o.withLabels(route))
}

// StoreFailed implements [idemkey.StoreObserver]. The error is left out, because it may contain
// addresses.
func (o *IdempotencyObserver) StoreFailed(ctx context.Context, route string, op idemkey.Op, _ error) {
	o.storeErrors.Add(ctx, 1, o.withLabels(route, labelOp.String(string(op))))
}

// Swept implements [idemkey.SweepObserver].
func (o *IdempotencyObserver) Swept(ctx context.Context, deleted int) {
	o.deleted.Add(ctx, int64(deleted), o.withLabels(""))
}

// withLabels returns the labels of a measurement. An unknown route is left out, because an
// empty value would be a series too.
func (o *IdempotencyObserver) withLabels(route string, labels ...attribute.KeyValue) metric.MeasurementOption {
	all := slices.Clone(o.attributes)
	if route != "" {
		all = append(all, labelRoute.String(route))
	}
	return metric.WithAttributes(append(all, labels...)...)
}

// oversizedPart returns which body of e was over its limit, or "".
func oversizedPart(e idemkey.Event) string {
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

// addDecision adds e to the active span. The error is left out, because it may be the handler's.
func addDecision(ctx context.Context, e idemkey.Event) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{decisionResult.String(string(e.Result))}
	if e.Attempt > 0 {
		attributes = append(attributes, decisionAttempt.Int(e.Attempt), decisionOutcome.String(string(e.Outcome)))
	}
	if e.Code != "" {
		attributes = append(attributes, decisionCode.String(e.Code))
	}
	if e.Status != 0 { // a panic has no status yet
		attributes = append(attributes, decisionStatus.Int(e.Status))
	}
	if e.TookOver {
		attributes = append(attributes, decisionTookOver.Bool(true))
	}
	if e.Oversize {
		attributes = append(attributes, decisionOversize.Bool(true))
	}
	span.AddEvent(decisionEvent, trace.WithAttributes(attributes...))
}
