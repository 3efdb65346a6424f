package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/examples/internal/demo"
)

var consumerMetrics = []demo.Metric{
	{Name: "sagamill_parked_messages", Kind: "gauge", Help: "Messages that are parked, by state.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleLabels("state", map[string]float64{"retrying": float64(m.Parked.Retrying), "calling": float64(m.Parked.Calling), "dead": float64(m.Parked.Dead)})
	}},
	{Name: "sagamill_parked_oldest_seconds", Kind: "gauge", Help: "Time since the first of the parked messages was parked, by state.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		oldest := map[string]float64{"retrying": 0, "calling": 0, "dead": 0}
		for i := range m.Parked.Parked {
			p := &m.Parked.Parked[i]
			state := p.State()
			oldest[state] = max(oldest[state], p.Oldest.Seconds())
		}
		return demo.SampleLabels("state", oldest)
	}},
	{Name: "sagamill_parked_overdue_seconds", Kind: "gauge", Help: "How long a parked message has been due that nobody has run.", Database: true, Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(m.Parked.Overdue.Seconds())
	}},
	{Name: "sagamill_consumer_messages_total", Kind: "counter", Help: "Arrivals of messages, by what became of them.", Samples: sampleArrivals},
	{Name: "sagamill_consumer_handler_seconds", Kind: "histogram", Help: "Time in the handler.", Samples: func(m *demo.Measurements) []demo.Sample {
		return sampleSteps(m, func(s *consumer.StepCounters) consumer.Histogram { return s.Handler })
	}},
	{Name: "sagamill_consumer_lag_seconds", Kind: "histogram", Help: "Age of a message when its handler is entered for the first time.", Samples: func(m *demo.Measurements) []demo.Sample {
		return sampleSteps(m, func(s *consumer.StepCounters) consumer.Histogram { return s.Lag })
	}},
	{Name: "sagamill_consumer_transaction_seconds", Kind: "histogram", Help: "Time of a transaction in which messages were handled.", Samples: func(m *demo.Measurements) []demo.Sample {
		return sampleHistogram("", m.Steps.Transactions)
	}},
	{Name: "sagamill_consumer_batch", Kind: "histogram", Help: "Messages in a transaction.", Samples: func(m *demo.Measurements) []demo.Sample {
		return sampleHistogram("", m.Steps.Batches)
	}},
	{Name: "sagamill_consumer_rollbacks_total", Kind: "counter", Help: "Transactions that were rolled back, or ended in a way that is not known.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Steps.RolledBack))
	}},
	{Name: "sagamill_consumer_inflight", Kind: "gauge", Help: "Handlers that run.", Samples: func(m *demo.Measurements) []demo.Sample {
		return demo.SampleValue(float64(m.Steps.InFlight))
	}},
	{Name: "sagamill_consumer_paused", Kind: "gauge", Help: "Whether the queues are handed over because the database is lost: 1 or 0.", Samples: func(m *demo.Measurements) []demo.Sample {
		if m.Steps.Paused {
			return demo.SampleValue(1)
		}
		return demo.SampleValue(0)
	}},
	{Name: "sagamill_consumer_subscribed", Kind: "gauge", Help: "Whether the broker delivers what comes to the topic: 1 or 0.", Samples: func(m *demo.Measurements) []demo.Sample {
		served := make(map[string]float64)
		for _, s := range m.Steps.Subscriptions {
			served[s.Topic] = 0
			if s.Served {
				served[s.Topic] = 1
			}
		}
		return demo.SampleLabels("topic", served)
	}},
	{Name: "sagamill_consumer_cancelled_total", Kind: "counter", Help: "Subscriptions that the broker has ended because their queue was deleted.", Samples: func(m *demo.Measurements) []demo.Sample {
		cancelled := make(map[string]float64)
		for _, s := range m.Steps.Subscriptions {
			cancelled[s.Topic] = float64(s.Cancelled)
		}
		return demo.SampleLabels("topic", cancelled)
	}},
}

// sampleArrivals returns the outcomes of each step, by reason if they have one, and the outcomes of
// messages that belong to no step.
func sampleArrivals(m *demo.Measurements) (all []demo.Sample) {
	add := func(of string, outcome consumer.Outcome, reasons map[consumer.Reason]uint64) {
		for _, reason := range slices.Sorted(maps.Keys(reasons)) {
			all = append(all, demo.Sample{Labels: fmt.Sprintf("%soutcome=%q,reason=%q", of, outcome, reason), Value: float64(reasons[reason])})
		}
	}
	for i := range m.Steps.Steps {
		s := &m.Steps.Steps[i]
		of := formatLabels(s) + ","
		for _, outcome := range slices.Sorted(maps.Keys(s.Outcomes)) {
			if outcome != consumer.OutcomeRetry && outcome != consumer.OutcomeDead {
				all = append(all, demo.Sample{Labels: fmt.Sprintf("%soutcome=%q", of, outcome), Value: float64(s.Outcomes[outcome])})
			}
		}
		add(of, consumer.OutcomeRetry, s.Retries)
		add(of, consumer.OutcomeDead, s.Dead)
	}
	add("", consumer.OutcomeDead, m.Steps.Rejected)
	if m.Steps.Unburied > 0 {
		all = append(all, demo.Sample{Labels: fmt.Sprintf("outcome=%q", consumer.OutcomeUndecided), Value: float64(m.Steps.Unburied)})
	}
	return all
}

func formatLabels(s *consumer.StepCounters) string {
	kind := "action"
	if s.Undo {
		kind = "compensation"
	}
	return fmt.Sprintf("step=%q,kind=%q", s.Step, kind)
}

// sampleSteps returns the histograms of the steps that have any value.
func sampleSteps(m *demo.Measurements, histogram func(*consumer.StepCounters) consumer.Histogram) (all []demo.Sample) {
	for i := range m.Steps.Steps {
		if h := histogram(&m.Steps.Steps[i]); h.Count > 0 {
			all = append(all, sampleHistogram(formatLabels(&m.Steps.Steps[i])+",", h)...)
		}
	}
	return all
}

// sampleHistogram returns h in Prometheus' form. of is empty or ends in a comma.
func sampleHistogram(of string, h consumer.Histogram) (all []demo.Sample) {
	for _, b := range h.Buckets {
		bound := strconv.FormatFloat(b.AtMost, 'f', -1, 64)
		all = append(all, demo.Sample{Suffix: "_bucket", Labels: fmt.Sprintf("%sle=%q", of, bound), Value: float64(b.Count)})
	}
	return append(all, demo.Sample{Suffix: "_bucket", Labels: of + `le="+Inf"`, Value: float64(h.Count)}, demo.Sample{Suffix: "_sum", Labels: of, Value: h.Sum}, demo.Sample{Suffix: "_count", Labels: of, Value: float64(h.Count)})
}
