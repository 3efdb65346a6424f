package telemetry_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	godiff "github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// readSteps returns a line for each seriesLines of the consumer: name, unit, labels and
// value; of a histogram of seconds the number of its measurements.
func readSteps(t *testing.T, reader *sdkmetric.ManualReader) []string {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatalf("Collect: %v", err)
	}
	var lines []string
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if !strings.HasPrefix(m.Name, "sagamill.") {
				continue // those of requests
			}
			if m.Description == "" {
				t.Errorf("%s has no description", m.Name)
			}
			lines = append(lines, seriesLines(m)...)
		}
	}
	slices.Sort(lines)
	return lines
}

func seriesLines(m metricdata.Metrics) (lines []string) {
	add := func(labels attribute.Set, value any) {
		lines = append(lines, fmt.Sprintf("%s[%s]{%s} %v", strings.TrimPrefix(m.Name, "sagamill."), m.Unit, labels.Encoded(attribute.DefaultEncoder()), value))
	}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, p.Value)
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, p.Value)
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, p.Value)
		}
	case metricdata.Histogram[int64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, fmt.Sprint(p.Count, "x", p.Sum))
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, p.Count)
		}
	}
	return lines
}

// checkMetrics compares all seriesLines with what TestOneTrace has done.
func (s *shop) checkMetrics(t *testing.T) {
	t.Helper()
	want := []string{
		"consumer.attempts[{attempt}]{error.type=_OTHER,kind=action,step=process-payment} 2",
		"consumer.attempts[{attempt}]{kind=action,step=arrange-shipping} 1",
		"consumer.attempts[{attempt}]{kind=action,step=process-payment} 2",
		"consumer.attempts[{attempt}]{kind=action,step=record-decline} 1",
		"consumer.attempts[{attempt}]{kind=action,step=record-refund} 1",
		"consumer.attempts[{attempt}]{kind=compensation,step=process-payment} 1",
		"consumer.batch[{message}]{} 9x9",
		"consumer.handler_seconds[s]{kind=action,step=arrange-shipping} 1",
		"consumer.handler_seconds[s]{kind=action,step=process-payment} 4",
		"consumer.handler_seconds[s]{kind=action,step=record-decline} 1",
		"consumer.handler_seconds[s]{kind=action,step=record-refund} 1",
		"consumer.handler_seconds[s]{kind=compensation,step=process-payment} 1",
		"consumer.inflight[{attempt}]{} 0",
		"consumer.lag_seconds[s]{kind=action,step=arrange-shipping} 1",
		"consumer.lag_seconds[s]{kind=action,step=process-payment} 2",
		"consumer.lag_seconds[s]{kind=action,step=record-decline} 1",
		"consumer.lag_seconds[s]{kind=action,step=record-refund} 1",
		"consumer.lag_seconds[s]{kind=compensation,step=process-payment} 1",
		"consumer.messages[{message}]{kind=action,outcome=done,step=arrange-shipping} 1",
		"consumer.messages[{message}]{kind=action,outcome=done,step=process-payment} 2",
		"consumer.messages[{message}]{kind=action,outcome=done,step=record-decline} 1",
		"consumer.messages[{message}]{kind=action,outcome=done,step=record-refund} 1",
		"consumer.messages[{message}]{kind=action,outcome=duplicate,step=process-payment} 1",
		"consumer.messages[{message}]{kind=action,outcome=retry,reason=failed,step=process-payment} 2",
		"consumer.messages[{message}]{kind=compensation,outcome=done,step=process-payment} 1",
		"consumer.paused[{consumer}]{} 0",
		"consumer.transaction_seconds[s]{} 9",
		"parked.overdue_seconds[s]{} 0",
	}
	slices.Sort(want)
	if diff := godiff.Diff(want, readSteps(t, s.reader)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
