package monitoring

import (
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// prometheusUnits are those of the units that this module uses. Units in braces are
// comments, which an exporter leaves out.
var prometheusUnits = map[string]string{"s": "seconds", "By": "bytes"}

// prometheusName returns the name that the exporter gives a metric: dots become
// underscores, a unit is added where the name does not have it, and so is total to a counter.
func prometheusName(name, unit string, counter bool) string {
	tokens := strings.FieldsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != ':'
	})
	if suffix := prometheusUnits[unit]; suffix != "" && !slices.Contains(tokens, suffix) {
		tokens = append(tokens, suffix)
	}
	if counter {
		tokens = append(slices.DeleteFunc(tokens, func(token string) bool { return token == "total" }), "total")
	}
	return strings.Join(tokens, "_")
}

// prometheusLabel returns the name that the exporter gives a label.
func prometheusLabel(name attribute.Key) string {
	return strings.ReplaceAll(string(name), ".", "_")
}

// These are what the exporter itself has made of them.
func TestPrometheusName(t *testing.T) {
	t.Parallel()
	for want, of := range map[string]struct {
		name, unit string
		counter    bool
	}{
		"sagamill_outbox_messages":              {"sagamill.outbox.messages", "{message}", false},
		"sagamill_outbox_oldest_seconds":        {"sagamill.outbox.oldest_seconds", "s", false},
		"sagamill_outbox_leaf_bytes":            {"sagamill.outbox.leaf_bytes", "By", false},
		"sagamill_outbox_confirms_total":        {"sagamill.outbox.confirms", "{call}", true},
		"sagamill_outbox_confirm_seconds_total": {"sagamill.outbox.confirm_seconds", "s", true},
		"idemkey_stored_bytes":                  {"idemkey.stored_bytes", "By", false},
		"a_b_total_seconds":                     {"a.b..total", "s", false},
		"a_seconds_total":                       {"a.total", "s", true},
	} {
		if got := prometheusName(of.name, of.unit, of.counter); got != want {
			t.Errorf("prometheusName(%v) = %s, want %s", of, got, want)
		}
	}
	if got := prometheusLabel("http.route"); got != "http_route" {
		t.Errorf("prometheusLabel = %s", got)
	}
}

// A series is a metric as Prometheus has it: its labels, and the values that each may have;
// without any, they are not fixed.
type series map[string][]string

// add adds the labels of set.
func (s series) add(set attribute.Set) {
	for _, label := range set.ToSlice() {
		if name := prometheusLabel(label.Key); s[name] == nil {
			s[name] = nil
		}
	}
}

// collected returns the series of what was collected.
func collected(all *metricdata.ResourceMetrics) map[string]series {
	found := map[string]series{}
	add := func(name string, sets ...attribute.Set) {
		if found[name] == nil {
			found[name] = series{}
		}
		for _, set := range sets {
			found[name].add(set)
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			sets, counter, histogram := points(m.Data)
			name := prometheusName(m.Name, m.Unit, counter)
			if !histogram {
				add(name, sets...)
				continue
			}
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				add(name+suffix, sets...)
			}
			found[name+"_bucket"]["le"] = nil
		}
	}
	return found
}

// points returns the labels of each point of data, and what kind it is of.
func points(data metricdata.Aggregation) (sets []attribute.Set, counter, histogram bool) {
	switch data := data.(type) {
	case metricdata.Gauge[int64]:
		sets = attributes(data.DataPoints)
	case metricdata.Gauge[float64]:
		sets = attributes(data.DataPoints)
	case metricdata.Sum[int64]:
		sets, counter = attributes(data.DataPoints), data.IsMonotonic
	case metricdata.Sum[float64]:
		sets, counter = attributes(data.DataPoints), data.IsMonotonic
	case metricdata.Histogram[int64]:
		histogram = true
		for _, p := range data.DataPoints {
			sets = append(sets, p.Attributes)
		}
	case metricdata.Histogram[float64]:
		histogram = true
		for _, p := range data.DataPoints {
			sets = append(sets, p.Attributes)
		}
	}
	return sets, counter, histogram
}

func attributes[N int64 | float64](points []metricdata.DataPoint[N]) (sets []attribute.Set) {
	for _, p := range points {
		sets = append(sets, p.Attributes)
	}
	return sets
}
