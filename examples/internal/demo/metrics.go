package demo

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// metricsTimeout limits how long a service's database may take to answer.
const metricsTimeout = 2 * time.Second

// Measurements are the counters and statistics of one service.
type Measurements struct {
	Service *Service
	Relay   outbox.Counters
	Steps   consumer.Counters

	Outbox outbox.Stats
	Parked consumer.Stats
	Sagas  saga.Stats // of a service with an orchestrator
	err    error      // of the database, which the three above are read from
}

func (s *Service) measureService(ctx context.Context) *Measurements {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	m := &Measurements{Service: s, Relay: s.Relay.Counters(), Steps: s.Consumer.Counters()}
	if m.Outbox, m.err = s.Relay.Stats(ctx); m.err == nil {
		m.Parked, m.err = s.Consumer.Stats(ctx)
	}
	if m.err == nil && s.Orchestrator != nil {
		m.Sagas, m.err = s.Orchestrator.Stats(ctx)
	}
	return m
}

// A Metric is a family of series in Prometheus' text format.
type Metric struct {
	Name, Kind, Help string

	Database bool // its values are read from the database, and missing while that does not answer
	Samples  func(*Measurements) []Sample
}

// A Sample is one value of a [Metric].
type Sample struct {
	Suffix string // of the metric's name
	Labels string // beside the service, such as step="arrange-shipping"
	Value  float64
}

// SampleValue returns a sample without a label.
func SampleValue(value float64) []Sample { return []Sample{{Value: value}} }

// SampleLabels returns a sample for each value of a label, in the order of the label's values.
func SampleLabels[N int | int64 | uint64 | float64, S ~string](label string, values map[S]N) (all []Sample) {
	for _, value := range slices.Sorted(maps.Keys(values)) {
		all = append(all, Sample{Labels: fmt.Sprintf("%s=%q", label, string(value)), Value: float64(values[value])})
	}
	return all
}

// WriteMetrics writes the metrics of all services that have messages.
func WriteMetrics(ctx context.Context, w io.Writer, services []*Service, metrics []Metric) {
	fmt.Fprintf(w, "# HELP go_goroutines Goroutines of the process.\n# TYPE go_goroutines gauge\ngo_goroutines %d\n", runtime.NumGoroutine())
	var measured []*Measurements
	for _, s := range services {
		if s.Consumer == nil {
			continue
		}
		m := s.measureService(ctx)
		if m.err != nil {
			fmt.Fprintf(w, "# %s: the database does not answer\n", s.Name)
		}
		measured = append(measured, m)
	}
	for i := range metrics {
		metric := &metrics[i]
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", metric.Name, metric.Help, metric.Name, metric.Kind)
		for _, m := range measured {
			if !metric.Database || m.err == nil {
				metric.writeSamples(w, m)
			}
		}
	}
}

func (metric *Metric) writeSamples(w io.Writer, m *Measurements) {
	for _, s := range metric.Samples(m) {
		labels := strings.TrimSuffix(fmt.Sprintf("service=%q,%s", m.Service.Name, s.Labels), ",")
		fmt.Fprintf(w, "%s%s{%s} %g\n", metric.Name, s.Suffix, labels, s.Value)
	}
}

// serveMetrics answers in Prometheus' text format.
func (a *App) serveMetrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if !a.started.Load() {
		fmt.Fprintln(w, "# starting or stopping")
		return
	}
	WriteMetrics(r.Context(), w, a.services, a.Metrics)
}
