package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// metricsTimeout is how long a service's database may take to answer.
const metricsTimeout = 2 * time.Second

// A measured service is what metrics tell of.
type measured struct {
	name   string
	relay  outbox.Counters
	outbox outbox.Stats
	steps  consumer.Counters
	parked consumer.Stats
	err    error // of the database, from which the last two are
}

func (n *node) measure(ctx context.Context) measured {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	m := measured{name: n.name, relay: n.relay.Counters(), steps: n.consumer.Counters()}
	if m.outbox, m.err = n.relay.Stats(ctx); m.err == nil {
		m.parked, m.err = n.consumer.Stats(ctx)
	}
	return m
}

// A family is a metric with its series, which have one label beside the service
// or none; or, with samples, any.
type family struct {
	name, kind, help string
	database         bool // its values come from there
	label            string
	series           func(*measured) map[string]float64
	samples          func(*measured) []sample
}

// A sample is one value of a family.
type sample struct {
	suffix string // of the family's name
	labels string // such as step="arrange-shipping"
	value  float64
}

// one is a series without a label.
func one(value float64) map[string]float64 { return map[string]float64{"": value} }

// families are named as those of package telemetry, which are
// what other services use; this example needs no library for them.
var families = slices.Concat(outboxFamilies, consumerFamilies)

var outboxFamilies = []family{
	{"sagamill_outbox_messages", "gauge", "Messages that have not been published, by state.", true, "state", func(m *measured) map[string]float64 {
		return map[string]float64{
			"stored": float64(m.outbox.Stored), "delayed": float64(m.outbox.Delayed), "waiting": float64(m.outbox.Waiting),
			"refused": float64(m.outbox.Refused), "dead": float64(m.outbox.Dead),
		}
	}, nil},
	{"sagamill_outbox_oldest_seconds", "gauge", "Age of the oldest message that has not been published.", true, "state", func(m *measured) map[string]float64 {
		return map[string]float64{"stored": m.outbox.Oldest.Seconds()}
	}, nil},
	{"sagamill_outbox_epoch", "gauge", "How often the active relay has changed.", true, "", func(m *measured) map[string]float64 {
		return one(float64(m.outbox.Epoch))
	}, nil},
	{"sagamill_outbox_leaf_bytes", "gauge", "Size of each table of the outbox.", true, "leaf", func(m *measured) map[string]float64 {
		sizes := make(map[string]float64)
		for leaf, size := range m.outbox.Leaves {
			sizes[leaf] = float64(size)
		}
		return sizes
	}, nil},
	{"sagamill_outbox_oldest_writer_seconds", "gauge", "How long the oldest transaction is open that has written.", true, "", func(m *measured) map[string]float64 {
		return one(m.outbox.OldestWriter.Seconds())
	}, nil},
	{"sagamill_outbox_active", "gauge", "Whether this process publishes: 1 in one process, 0 in the others.", false, "", func(m *measured) map[string]float64 {
		if m.relay.Active {
			return one(1)
		}
		return one(0)
	}, nil},
	{"sagamill_outbox_published_total", "counter", "Messages that this process has published.", false, "", func(m *measured) map[string]float64 {
		return one(float64(m.relay.Published))
	}, nil},
	{"sagamill_outbox_refusals_total", "counter", "Refusals of the broker.", false, "", func(m *measured) map[string]float64 {
		return one(float64(m.relay.Refused))
	}, nil},
	{"sagamill_outbox_dead_letters_total", "counter", "Messages that became dead letters.", false, "", func(m *measured) map[string]float64 {
		return one(float64(m.relay.Dead))
	}, nil},
	{"sagamill_outbox_unavailable_total", "counter", "Calls of the broker without an answer.", false, "", func(m *measured) map[string]float64 {
		return one(float64(m.relay.Unavailable))
	}, nil},
	{"sagamill_outbox_confirms_total", "counter", "Calls of the broker that took at most le seconds.", false, "le", func(m *measured) map[string]float64 {
		calls := map[string]float64{"+Inf": float64(m.relay.Confirm.Count)}
		for _, b := range m.relay.Confirm.Buckets {
			calls[strconv.FormatFloat(b.AtMost.Seconds(), 'f', -1, 64)] = float64(b.Count)
		}
		return calls
	}, nil},
	{"sagamill_outbox_confirm_seconds_total", "counter", "Time in calls of the broker.", false, "", func(m *measured) map[string]float64 {
		return one(m.relay.Confirm.Sum.Seconds())
	}, nil},
}

// metrics answers in Prometheus' text format.
func (a *app) metrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if !a.started.Load() {
		fmt.Fprintln(w, "# starting or stopping")
		return
	}
	fmt.Fprintf(w, "# HELP go_goroutines Goroutines of the process.\n# TYPE go_goroutines gauge\ngo_goroutines %d\n", runtime.NumGoroutine())
	var services []measured
	for _, n := range a.nodes {
		if n.consumer == nil {
			continue
		}
		m := n.measure(r.Context())
		if m.err != nil {
			fmt.Fprintf(w, "# %s: the database does not answer\n", m.name)
		}
		services = append(services, m)
	}
	for _, f := range families {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		for i := range services {
			if m := &services[i]; !f.database || m.err == nil {
				f.print(w, m)
			}
		}
	}
}

// print prints the series of m.
func (f *family) print(w http.ResponseWriter, m *measured) {
	if f.samples != nil {
		for _, s := range f.samples(m) {
			labels := strings.TrimSuffix(fmt.Sprintf("service=%q,%s", m.name, s.labels), ",")
			fmt.Fprintf(w, "%s%s{%s} %g\n", f.name, s.suffix, labels, s.value)
		}
		return
	}
	series := f.series(m)
	for _, value := range slices.Sorted(maps.Keys(series)) {
		label := ""
		if f.label != "" {
			label = fmt.Sprintf(",%s=%q", f.label, value)
		}
		fmt.Fprintf(w, "%s{service=%q%s} %g\n", f.name, m.name, label, series[value])
	}
}
