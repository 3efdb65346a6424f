package main

import (
	"slices"
	"strconv"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// metrics have the same names as in package telemetry. This example needs no library for them.
var metrics = slices.Concat(outboxMetrics, consumerMetrics)

var outboxMetrics = []demo.Metric{
	{Name: "sagamill_outbox_messages", Kind: "gauge", Help: "Messages that have not been published, by state.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleLabels("state", map[string]float64{
			"stored": float64(m.Outbox.Stored), "delayed": float64(m.Outbox.Delayed), "waiting": float64(m.Outbox.Waiting),
			"refused": float64(m.Outbox.Refused), "dead": float64(m.Outbox.Dead),
		})
	}},
	{Name: "sagamill_outbox_oldest_seconds", Kind: "gauge", Help: "Age of the oldest message that has not been published.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleLabels("state", map[string]float64{"stored": m.Outbox.Oldest.Seconds()})
	}},
	{Name: "sagamill_outbox_epoch", Kind: "gauge", Help: "How often the active relay has changed.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Outbox.Epoch))
	}},
	{Name: "sagamill_outbox_leaf_bytes", Kind: "gauge", Help: "Size of each table of the outbox.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		sizes := make(map[string]float64)
		for leaf, size := range m.Outbox.Leaves {
			sizes[leaf] = float64(size)
		}
		return demo.SampleLabels("leaf", sizes)
	}},
	{Name: "sagamill_outbox_oldest_writer_seconds", Kind: "gauge", Help: "How long the oldest transaction is open that has written.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(m.Outbox.OldestWriter.Seconds())
	}},
	{Name: "sagamill_outbox_active", Kind: "gauge", Help: "Whether this process publishes: 1 in one process, 0 in the others.", Samples: func(m *demo.Measurements) []demo.Sample {
		if m.Relay.Active {
			return demo.SampleValue(1)
		}
		return demo.SampleValue(0)
	}},
	{Name: "sagamill_outbox_published_total", Kind: "counter", Help: "Messages that this process has published.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Relay.Published))
	}},
	{Name: "sagamill_outbox_refusals_total", Kind: "counter", Help: "Refusals of the broker.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Relay.Refused))
	}},
	{Name: "sagamill_outbox_dead_letters_total", Kind: "counter", Help: "Messages that became dead letters.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Relay.Dead))
	}},
	{Name: "sagamill_outbox_unavailable_total", Kind: "counter", Help: "Calls of the broker without an answer.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Relay.Unavailable))
	}},
	{Name: "sagamill_outbox_confirms_total", Kind: "counter", Help: "Calls of the broker that took at most le seconds.", Samples: func(m *demo.Measurements) []demo.Sample {
		calls := map[string]float64{"+Inf": float64(m.Relay.Confirm.Count)}
		for _, b := range m.Relay.Confirm.Buckets {
			calls[strconv.FormatFloat(b.AtMost.Seconds(), 'f', -1, 64)] = float64(b.Count)
		}
		return demo.SampleLabels("le", calls)
	}},
	{Name: "sagamill_outbox_confirm_seconds_total", Kind: "counter", Help: "Time in calls of the broker.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(m.Relay.Confirm.Sum.Seconds())
	}},
}
