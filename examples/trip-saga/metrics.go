package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/saga"
)

// metrics are the metrics of sagas, and some of relays and consumers. They have the same names as in
// package telemetry. The order example has all others.
var metrics = []demo.Metric{
	{Name: "sagamill_outbox_messages", Kind: "gauge", Help: "Messages that have not been published, by state.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleLabels("state", map[string]int{
			"stored": int(m.Outbox.Stored), "delayed": int(m.Outbox.Delayed), "waiting": int(m.Outbox.Waiting),
			"refused": int(m.Outbox.Refused), "dead": int(m.Outbox.Dead),
		})
	}},
	{Name: "sagamill_outbox_published_total", Kind: "counter", Help: "Messages that this process has published.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Relay.Published))
	}},
	{Name: "sagamill_parked_messages", Kind: "gauge", Help: "Messages that are parked, by state.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleLabels("state", map[string]int{"retrying": int(m.Parked.Retrying), "calling": int(m.Parked.Calling), "dead": int(m.Parked.Dead)})
	}},
	{Name: "sagamill_consumer_messages_total", Kind: "counter", Help: "Arrivals of messages, by what became of them.", Samples: sampleArrivals},
	{Name: "sagamill_saga_instances_live", Kind: "gauge", Help: "Instances that have not ended, by status.", Database: true, Samples: sampleSagas(func(m *demo.Measurements) []demo.Sample {
		return demo.SampleLabels("status", map[saga.Status]int{
			saga.StatusRunning: m.Sagas.Running, saga.StatusCompensating: m.Sagas.Compensating, saga.StatusPaused: m.Sagas.Paused, saga.StatusStuck: m.Sagas.Stuck,
		})
	})},
	{Name: "sagamill_saga_oldest_stuck_seconds", Kind: "gauge", Help: "How long a stuck instance has waited for a person.", Database: true, Samples: sampleSagas(func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(m.Sagas.OldestStuck.Seconds())
	})},
	{Name: "sagamill_saga_overdue_seconds", Kind: "gauge", Help: "How long an instance has been due that no orchestrator has looked at.", Database: true, Samples: sampleSagas(func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(m.Sagas.Overdue.Seconds())
	})},
	{Name: "sagamill_saga_instances_total", Kind: "counter", Help: "Instances that have ended or become stuck, by status.", Samples: sampleSagas(func(m *demo.Measurements) []demo.Sample {
		c := m.Service.Orchestrator.Counters()
		return demo.SampleLabels("status", map[saga.Status]uint64{saga.StatusCompleted: c.Completed, saga.StatusCompensated: c.Compensated, saga.StatusStuck: c.Stuck})
	})},
	{Name: "sagamill_saga_late_replies_total", Kind: "counter", Help: "Replies that nobody waited for.", Samples: sampleSagas(func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Service.Orchestrator.Counters().Late))
	})},
}

// sampleSagas returns samples of a service with an orchestrator, and no samples of any other.
func sampleSagas(samples func(*demo.Measurements) []demo.Sample) func(*demo.Measurements) []demo.Sample {
	return func(m *demo.Measurements) []demo.Sample {
		if m.Service.Orchestrator == nil {
			return nil
		}
		return samples(m)
	}
}

// sampleArrivals returns the outcomes of each step.
func sampleArrivals(m *demo.Measurements) (all []demo.Sample) {
	for i := range m.Steps.Steps {
		s := &m.Steps.Steps[i]
		kind := "action"
		if s.Undo {
			kind = "compensation"
		}
		for outcome, n := range s.Outcomes {
			all = append(all, demo.Sample{Labels: fmt.Sprintf("step=%q,kind=%q,outcome=%q", s.Step, kind, outcome), Value: float64(n)})
		}
	}
	slices.SortFunc(all, func(a, b demo.Sample) int { return strings.Compare(a.Labels, b.Labels) })
	return all
}
