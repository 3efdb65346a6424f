package telemetry_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// deadline is when a test gives up.
const deadline = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// collectSeries returns the value of each series by its name, unit and labels.
func collectSeries(t *testing.T, reader *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	series, err := tryCollectSeries(t, reader)
	if err != nil {
		t.Fatalf("Collect: %v", err)
	}
	return series
}

func tryCollectSeries(t *testing.T, reader *sdkmetric.ManualReader) (map[string]float64, error) {
	t.Helper()
	var all metricdata.ResourceMetrics
	err := reader.Collect(t.Context(), &all)
	series := map[string]float64{}
	add := func(m metricdata.Metrics, kind string, labels attribute.Set, value float64) {
		if m.Description == "" {
			t.Errorf("%s has no description", m.Name)
		}
		series[strings.TrimSpace(fmt.Sprintf("%s %s[%s] %s", kind, strings.TrimPrefix(strings.TrimPrefix(m.Name, "sagamill.outbox."), "sagamill.saga."), m.Unit, labels.Encoded(attribute.DefaultEncoder())))] = value
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(m, "gauge", p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(m, "gauge", p.Attributes, p.Value)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m, kindOf(data.IsMonotonic), p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					add(m, kindOf(data.IsMonotonic), p.Attributes, p.Value)
				}
			}
		}
	}
	return series, err
}

func kindOf(monotonic bool) string {
	if monotonic {
		return "counter"
	}
	return "sum"
}

// A refusing provider refuses the instrument of a name, or the callback.
type refusing struct {
	name string
	err  error
}

func (p refusing) provider() metric.MeterProvider { return refusingProvider{p: p} }

type refusingProvider struct {
	noop.MeterProvider
	p refusing
}

func (p refusingProvider) Meter(string, ...metric.MeterOption) metric.Meter {
	return refusingMeter{p: p.p}
}

type refusingMeter struct {
	noop.Meter
	p refusing
}

func (m refusingMeter) judge(name string) error {
	if name == m.p.name {
		return m.p.err
	}
	return nil
}

func (m refusingMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return noop.Int64Counter{}, m.judge(name)
}

func (m refusingMeter) Int64Histogram(name string, _ ...metric.Int64HistogramOption) (metric.Int64Histogram, error) {
	return noop.Int64Histogram{}, m.judge(name)
}

func (m refusingMeter) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return noop.Int64UpDownCounter{}, m.judge(name)
}

func (m refusingMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return noop.Float64Histogram{}, m.judge(name)
}

func (m refusingMeter) Int64ObservableGauge(name string, _ ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	return noop.Int64ObservableGauge{}, m.judge(name)
}

func (m refusingMeter) Float64ObservableGauge(name string, _ ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	return noop.Float64ObservableGauge{}, m.judge(name)
}

func (m refusingMeter) Int64ObservableCounter(name string, _ ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return noop.Int64ObservableCounter{}, m.judge(name)
}

func (m refusingMeter) Float64ObservableCounter(name string, _ ...metric.Float64ObservableCounterOption) (metric.Float64ObservableCounter, error) {
	return noop.Float64ObservableCounter{}, m.judge(name)
}

func (m refusingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return noop.Registration{}, m.judge("callback")
}
