// Package promexport offers metrics of package telemetry over HTTP in Prometheus' format, for a service without its
// own OpenTelemetry set-up. It is a package of its own so that only its users compile Prometheus' client.
package promexport

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/sagamill/sagamill/telemetry"
)

// An Exporter collects metrics and answers scrapes. It has its own registry, so that several may be in one process.
type Exporter struct {
	provider *metric.MeterProvider
	handler  http.Handler
}

// New returns an Exporter. Besides the metrics of package telemetry it has those of the process and of Go's runtime.
func New() (*Exporter, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return nil, fmt.Errorf("promexport: %w", err)
	}
	return &Exporter{
		provider: metric.NewMeterProvider(metric.WithReader(reader)),
		handler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}),
	}, nil
}

// Options returns options with which package telemetry exports its metrics here. Traces go to OpenTelemetry's global
// provider.
func (e *Exporter) Options() *telemetry.Options { return &telemetry.Options{MeterProvider: e.provider} }

// ServeHTTP answers a scrape.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.handler.ServeHTTP(w, r) }

// Close ends the collection.
func (e *Exporter) Close() error { return e.provider.Shutdown(context.Background()) }
