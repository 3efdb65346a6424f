package meter

import "time"

// The normal state of the services is their state before a fault, with a margin.
const (
	rateSpan  = time.Second // over which completed orders are counted for the rate
	rateShare = 0.8         // of the offered rate; a batch more or less is not a fault
	roomTime  = time.Second // so much of the load may be under way besides
	calmLooks = 3           // samples in a row that must be normal
)

// A Normal is the services' state without faults.
type Normal struct {
	Stored, Held, Open int     // at most
	Rate               float64 // completed orders in a second, at least
}

// NormalRates returns the services' state since a moment, as a Normal. orders and messages are the load, in
// each second.
func (m *Meter) NormalRates(from time.Time, orders, messages int) Normal {
	m.mu.Lock()
	defer m.mu.Unlock()
	var n Normal
	for _, s := range m.samples {
		if !s.At.Before(from) {
			n.Stored, n.Held, n.Open = max(n.Stored, s.Stored), max(n.Held, s.Held), max(n.Open, s.OpenOrders())
		}
	}
	seconds := int(roomTime / time.Second)
	n.Stored, n.Open = n.Stored+messages*seconds, n.Open+orders*seconds
	n.Rate = rateShare * float64(orders)
	return n
}

// Recovered returns the first moment since from at which the services were back to normal
// and stayed so for some samples. It is zero if there is none yet.
func (m *Meter) Recovered(from time.Time, normal Normal) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	run := 0
	for i := range m.samples {
		s := &m.samples[i]
		if s.At.Before(from) {
			continue
		}
		if m.isCalm(s, normal) {
			run++
		} else {
			run = 0
		}
		if run == calmLooks {
			return m.samples[i-calmLooks+1].At
		}
	}
	return time.Time{}
}

// isCalm reports whether a sample is normal.
func (m *Meter) isCalm(s *Sample, normal Normal) bool {
	if s.Stored > normal.Stored || s.Held > normal.Held || s.OpenOrders() > normal.Open {
		return false
	}
	return float64(countBetween(m.completed, s.At.Add(-rateSpan), s.At)) >= normal.Rate*rateSpan.Seconds()
}
