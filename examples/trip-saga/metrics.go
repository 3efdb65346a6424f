package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// metricsTimeout is how long a service's database may take to answer.
const metricsTimeout = 2 * time.Second

// A measured service is what metrics tell of.
type measured struct {
	node   *node
	outbox outbox.Stats
	parked consumer.Stats
	sagas  saga.Stats
	err    error // of the database, from which these are
}

func (n *node) measure(ctx context.Context) *measured {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	m := &measured{node: n}
	if m.outbox, m.err = n.relay.Stats(ctx); m.err == nil {
		m.parked, m.err = n.consumer.Stats(ctx)
	}
	if m.err == nil && n.orchestrator != nil {
		m.sagas, m.err = n.orchestrator.Stats(ctx)
	}
	return m
}

// A family is a metric. Its series have the labels that are their keys.
type family struct {
	name, kind, help string
	database         bool // its values come from there
	series           func(*measured) map[string]float64
}

// families are those of sagas and some of those of relays and consumers that package telemetry has, under
// the same names. The order example has all of the others.
var families = []family{
	{"sagamill_outbox_messages", "gauge", "Messages that have not been published, by state.", true, func(m *measured) map[string]float64 {
		return by("state", map[string]int{
			"stored": int(m.outbox.Stored), "delayed": int(m.outbox.Delayed), "waiting": int(m.outbox.Waiting),
			"refused": int(m.outbox.Refused), "dead": int(m.outbox.Dead),
		})
	}},
	{"sagamill_outbox_published_total", "counter", "Messages that this process has published.", false, func(m *measured) map[string]float64 {
		return map[string]float64{"": float64(m.node.relay.Counters().Published)}
	}},
	{"sagamill_parked_messages", "gauge", "Messages that are parked, by state.", true, func(m *measured) map[string]float64 {
		return by("state", map[string]int{"retrying": int(m.parked.Retrying), "calling": int(m.parked.Calling), "dead": int(m.parked.Dead)})
	}},
	{"sagamill_consumer_messages_total", "counter", "Arrivals of messages, by what became of them.", false, arrivals},
	{"sagamill_saga_instances_live", "gauge", "Instances that have not ended, by status.", true, ofSagas(func(m *measured) map[string]float64 {
		return by("status", map[string]int{
			"running": m.sagas.Running, "compensating": m.sagas.Compensating, "paused": m.sagas.Paused, "stuck": m.sagas.Stuck,
		})
	})},
	{"sagamill_saga_oldest_stuck_seconds", "gauge", "How long a stuck instance has waited for a person.", true, ofSagas(func(m *measured) map[string]float64 {
		return map[string]float64{"": m.sagas.OldestStuck.Seconds()}
	})},
	{"sagamill_saga_overdue_seconds", "gauge", "How long an instance has been due that no orchestrator has looked at.", true, ofSagas(func(m *measured) map[string]float64 {
		return map[string]float64{"": m.sagas.Overdue.Seconds()}
	})},
	{"sagamill_saga_instances_total", "counter", "Instances that have ended or become stuck, by status.", false, ofSagas(func(m *measured) map[string]float64 {
		c := m.node.orchestrator.Counters()
		return by("status", map[string]int{"completed": int(c.Completed), "compensated": int(c.Compensated), "stuck": int(c.Stuck)})
	})},
	{"sagamill_saga_late_replies_total", "counter", "Replies that nobody waited for.", false, ofSagas(func(m *measured) map[string]float64 {
		return map[string]float64{"": float64(m.node.orchestrator.Counters().Late)}
	})},
}

// ofSagas returns series where they are of a service with an orchestrator, and none of any other.
func ofSagas(series func(*measured) map[string]float64) func(*measured) map[string]float64 {
	return func(m *measured) map[string]float64 {
		if m.node.orchestrator == nil {
			return nil
		}
		return series(m)
	}
}

// by returns values as series with one label.
func by(label string, values map[string]int) map[string]float64 {
	series := map[string]float64{}
	for value, n := range values {
		series[fmt.Sprintf(",%s=%q", label, value)] = float64(n)
	}
	return series
}

// arrivals are the outcomes of each step.
func arrivals(m *measured) map[string]float64 {
	series := map[string]float64{}
	counters := m.node.consumer.Counters()
	for i := range counters.Steps {
		s := &counters.Steps[i]
		kind := "action"
		if s.Undo {
			kind = "compensation"
		}
		for outcome, n := range s.Outcomes {
			series[fmt.Sprintf(",step=%q,kind=%q,outcome=%q", s.Step, kind, outcome)] = float64(n)
		}
	}
	return series
}

// metrics answers in Prometheus' text format.
func (a *app) metrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if !a.started.Load() {
		fmt.Fprintln(w, "# starting or stopping")
		return
	}
	fmt.Fprintf(w, "# HELP go_goroutines Goroutines of the process.\n# TYPE go_goroutines gauge\ngo_goroutines %d\n", runtime.NumGoroutine())
	var services []*measured
	for _, n := range a.nodes {
		m := n.measure(r.Context())
		if m.err != nil {
			fmt.Fprintf(w, "# %s: the database does not answer\n", n.name)
		}
		services = append(services, m)
	}
	for i := range families {
		f := &families[i]
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		for _, m := range services {
			if !f.database || m.err == nil {
				f.print(w, m)
			}
		}
	}
}

// print prints the series of m.
func (f *family) print(w io.Writer, m *measured) {
	series := f.series(m)
	for _, labels := range slices.Sorted(maps.Keys(series)) {
		fmt.Fprintf(w, "%s{service=%q%s} %g\n", f.name, m.node.name, labels, series[labels])
	}
}
