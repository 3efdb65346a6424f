package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/order-saga/internal/order"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/telemetry"
)

// tracing writes each span of this process as a line of JSON, so that a saga can be seen without
// a collector. A real service uses an exporter instead. A nil tracing makes no spans.
type tracing struct {
	mu        sync.Mutex
	to        io.Writer
	file      *os.File // nil: to is closed by the caller
	providers []*sdktrace.TracerProvider
}

// openTracing returns a tracing that appends to the file at path, which processes may share. If path
// is a hyphen, it writes to stderr. If path is empty, openTracing returns nil.
func openTracing(path string, stderr io.Writer) (*tracing, error) {
	switch path {
	case "":
		return nil, nil
	case "-":
		return &tracing{to: stderr}, nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, demo.BadSetting("-trace", "%v", err)
	}
	return &tracing{to: file, file: file}, nil
}

// closeProviders writes the spans that are left, and closes the file.
func (t *tracing) closeProviders(ctx context.Context) (err error) {
	if t == nil {
		return nil
	}
	for _, p := range t.providers {
		err = errors.Join(err, p.Shutdown(ctx))
	}
	if t.file != nil {
		err = errors.Join(err, t.file.Close())
	}
	return err
}

// newProvider returns a tracer provider for a service of this process. closeProviders closes it.
func (t *tracing) newProvider(service string) trace.TracerProvider {
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(t),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service))))
	t.providers = append(t.providers, p)
	return p
}

// A spanLine is a span as JSON.
type spanLine struct {
	Trace      string         `json:"trace"`
	Span       string         `json:"span"`
	Parent     string         `json:"parent,omitempty"`
	Service    string         `json:"service"`
	Name       string         `json:"name"`
	Kind       string         `json:"kind"`
	Start      time.Time      `json:"start"`
	Seconds    float64        `json:"seconds"`
	Error      string         `json:"error,omitempty"`
	Attributes map[string]any `json:"attributes,omitempty"`
	Events     []string       `json:"events,omitempty"`
	Links      []spanLink     `json:"links,omitempty"`
}

// A spanLink is a span of another trace, in which a duplicate of the message was written.
type spanLink struct {
	Trace string `json:"trace"`
	Span  string `json:"span"`
}

// ExportSpans implements sdktrace.SpanExporter. It writes each line in one call, so that lines of
// several processes do not mix.
func (t *tracing) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range spans {
		encoded, err := json.Marshal(newSpanLine(s))
		if err != nil {
			return fmt.Errorf("trace: %w", err)
		}
		if _, err := t.to.Write(append(encoded, '\n')); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter. It does nothing, because the providers share t.
func (t *tracing) Shutdown(context.Context) error { return nil }

func newSpanLine(s sdktrace.ReadOnlySpan) spanLine {
	l := spanLine{
		Trace: s.SpanContext().TraceID().String(), Span: s.SpanContext().SpanID().String(),
		Name: s.Name(), Kind: s.SpanKind().String(), Start: s.StartTime(), Seconds: s.EndTime().Sub(s.StartTime()).Seconds(),
		Error: s.Status().Description, Attributes: map[string]any{},
	}
	if s.Parent().HasSpanID() {
		l.Parent = s.Parent().SpanID().String()
	}
	if name, ok := s.Resource().Set().Value("service.name"); ok {
		l.Service = name.AsString()
	}
	for _, a := range s.Attributes() {
		l.Attributes[string(a.Key)] = a.Value.AsInterface()
	}
	for _, e := range s.Events() {
		l.Events = append(l.Events, e.Name)
	}
	for _, to := range s.Links() {
		l.Links = append(l.Links, spanLink{to.SpanContext.TraceID().String(), to.SpanContext.SpanID().String()})
	}
	return l
}

// watchers observe one service for its part of the traces. Without tracing the fields are nil.
type watchers struct {
	relay    outbox.PublishObserver
	consumer consumer.Observer
	order    order.Watchers
	http     trace.Tracer
}

func (t *tracing) newWatchers(service string) (w watchers, err error) {
	if t == nil {
		return w, nil
	}
	provider := t.newProvider(service)
	opts := &telemetry.Options{TracerProvider: provider}
	tracer := telemetry.NewOutboxTracer(opts)
	w.relay, w.order.Tracer, w.http = tracer, tracer, provider.Tracer("order-saga")
	if w.consumer, err = telemetry.NewConsumerObserver(opts); err != nil {
		return w, err
	}
	w.order.Requests, err = telemetry.NewIdempotencyObserver(opts)
	return w, err
}

// traceRequests returns next with a span around each request, as otelhttp does. The services of this
// process share a listener, hence one provider.
func (t *tracing) traceRequests(services []string, next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	name := "order-saga"
	if len(services) == 1 {
		name = services[0]
	}
	tracer := t.newProvider(name).Tracer("order-saga")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		r = r.WithContext(ctx)
		next.ServeHTTP(w, r)
		if r.Pattern != "" {
			span.SetName(r.Pattern) // the path itself contains an order's ID
		}
	})
}

// newTracedClient returns an HTTP client that propagates the trace of a request's context.
func (w *watchers) newTracedClient() *http.Client {
	if w.http == nil {
		return &http.Client{}
	}
	return &http.Client{Transport: tracingTransport{w.http}}
}

// tracingTransport is a transport with a span around each call.
type tracingTransport struct{ tracer trace.Tracer }

// RoundTrip implements [http.RoundTripper].
func (p tracingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, span := p.tracer.Start(r.Context(), r.Method+" "+r.URL.Path, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	r = r.Clone(ctx)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	return http.DefaultTransport.RoundTrip(r)
}
