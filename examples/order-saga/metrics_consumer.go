package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sagamill/sagamill/consumer"
)

var consumerFamilies = []family{
	{"sagamill_parked_messages", "gauge", "Messages that are parked, by state.", true, "state", func(m *measured) map[string]float64 {
		return map[string]float64{"retrying": float64(m.parked.Retrying), "calling": float64(m.parked.Calling), "dead": float64(m.parked.Dead)}
	}, nil},
	{"sagamill_parked_oldest_seconds", "gauge", "Time since the first of the parked messages was parked, by state.", true, "state", func(m *measured) map[string]float64 {
		oldest := map[string]float64{"retrying": 0, "calling": 0, "dead": 0}
		for i := range m.parked.Parked {
			p := &m.parked.Parked[i]
			state := p.State()
			oldest[state] = max(oldest[state], p.Oldest.Seconds())
		}
		return oldest
	}, nil},
	{"sagamill_parked_overdue_seconds", "gauge", "How long a parked message has been due that nobody has run.", true, "", func(m *measured) map[string]float64 {
		return one(m.parked.Overdue.Seconds())
	}, nil},
	{"sagamill_consumer_messages_total", "counter", "Arrivals of messages, by what became of them.", false, "", nil, arrivals},
	{"sagamill_consumer_handler_seconds", "histogram", "Time in the handler.", false, "", nil, func(m *measured) []sample {
		return ofSteps(m, func(s *consumer.StepCounters) consumer.Histogram { return s.Handler })
	}},
	{"sagamill_consumer_lag_seconds", "histogram", "Age of a message when its handler is entered for the first time.", false, "", nil, func(m *measured) []sample {
		return ofSteps(m, func(s *consumer.StepCounters) consumer.Histogram { return s.Lag })
	}},
	{"sagamill_consumer_transaction_seconds", "histogram", "Time of a transaction in which messages were handled.", false, "", nil, func(m *measured) []sample {
		return distribution("", m.steps.Transactions)
	}},
	{"sagamill_consumer_batch", "histogram", "Messages in a transaction.", false, "", nil, func(m *measured) []sample {
		return distribution("", m.steps.Batches)
	}},
	{"sagamill_consumer_rollbacks_total", "counter", "Transactions that were rolled back, or ended in a way that is not known.", false, "", func(m *measured) map[string]float64 {
		return one(float64(m.steps.RolledBack))
	}, nil},
	{"sagamill_consumer_inflight", "gauge", "Handlers that run.", false, "", func(m *measured) map[string]float64 {
		return one(float64(m.steps.InFlight))
	}, nil},
	{"sagamill_consumer_subscribed", "gauge", "Whether the broker delivers what comes to the topic: 1 or 0.", false, "topic", func(m *measured) map[string]float64 {
		served := make(map[string]float64)
		for _, s := range m.steps.Subscriptions {
			served[s.Topic] = 0
			if s.Served {
				served[s.Topic] = 1
			}
		}
		return served
	}, nil},
	{"sagamill_consumer_cancelled_total", "counter", "Subscriptions that the broker has ended, as when their queue was deleted.", false, "topic", func(m *measured) map[string]float64 {
		cancelled := make(map[string]float64)
		for _, s := range m.steps.Subscriptions {
			cancelled[s.Topic] = float64(s.Cancelled)
		}
		return cancelled
	}, nil},
}

// arrivals are the outcomes of each step, those with a reason by it, and what
// belongs to no step.
func arrivals(m *measured) (all []sample) {
	add := func(of string, outcome consumer.Outcome, reasons map[consumer.Reason]uint64) {
		for _, reason := range slices.Sorted(maps.Keys(reasons)) {
			all = append(all, sample{labels: fmt.Sprintf("%soutcome=%q,reason=%q", of, outcome, reason), value: float64(reasons[reason])})
		}
	}
	for i := range m.steps.Steps {
		s := &m.steps.Steps[i]
		of := stepLabels(s) + ","
		for _, outcome := range slices.Sorted(maps.Keys(s.Outcomes)) {
			if outcome != consumer.OutcomeRetry && outcome != consumer.OutcomeDead {
				all = append(all, sample{labels: fmt.Sprintf("%soutcome=%q", of, outcome), value: float64(s.Outcomes[outcome])})
			}
		}
		add(of, consumer.OutcomeRetry, s.Retries)
		add(of, consumer.OutcomeDead, s.Dead)
	}
	add("", consumer.OutcomeDead, m.steps.Rejected)
	if m.steps.Unburied > 0 {
		all = append(all, sample{labels: fmt.Sprintf("outcome=%q", consumer.OutcomeUndecided), value: float64(m.steps.Unburied)})
	}
	return all
}

func stepLabels(s *consumer.StepCounters) string {
	kind := "action"
	if s.Undo {
		kind = "compensation"
	}
	return fmt.Sprintf("step=%q,kind=%q", s.Step, kind)
}

// ofSteps are the histograms of the steps that have any value.
func ofSteps(m *measured, histogram func(*consumer.StepCounters) consumer.Histogram) (all []sample) {
	for i := range m.steps.Steps {
		if h := histogram(&m.steps.Steps[i]); h.Count > 0 {
			all = append(all, distribution(stepLabels(&m.steps.Steps[i])+",", h)...)
		}
	}
	return all
}

// distribution is h in Prometheus' form. of is empty or ends in a comma.
func distribution(of string, h consumer.Histogram) (all []sample) {
	for _, b := range h.Buckets {
		bound := strconv.FormatFloat(b.AtMost, 'f', -1, 64)
		all = append(all, sample{"_bucket", fmt.Sprintf("%sle=%q", of, bound), float64(b.Count)})
	}
	return append(all, sample{"_bucket", of + `le="+Inf"`, float64(h.Count)}, sample{"_sum", of, h.Sum}, sample{"_count", of, float64(h.Count)})
}
