package meter

import "time"

// The spans of a window.
const (
	// Before is the time before the fault with which blue is compared.
	Before = 3 * time.Second
	// Shortest is the least time over which blue is counted from the strike on. In a shorter time, one batch
	// would be a tenth of all messages.
	Shortest = 4 * time.Second
)

// A Window names the moments of one fault.
type Window struct {
	Struck    time.Time // the fault was in force, or about to be
	Ended     time.Time // the fault was ended, including an operator's part
	Recovered time.Time // zero: no recovery in time
	Over      time.Time // when the next one may strike; at least Shortest after the strike
}

// Figures are the cost of one fault.
type Figures struct {
	Duration time.Duration // from the strike to the end
	Stall    time.Duration // longest time without a completed order
	Recovery time.Duration // from the end until all is normal again
	Stuck    bool          // no recovery; Recovery is how long the run waited for it

	BluePercent float64       // of the rate of blue before the strike, during the fault
	BlueDelay   time.Duration // longest from the commit of a blue message to that of its effect

	Held        int // most messages that the relay held back
	Deferred    int // how often the relay has kept a message aside
	Dead        int // dead letters that were added
	Redelivered int // messages
	Done        int // orders completed
}

// WindowFigures measures a window.
func (m *Meter) WindowFigures(w Window) Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := Figures{
		Duration: w.Ended.Sub(w.Struck), Stall: m.longestStall(w.Struck, w.Over), Recovery: w.Recovered.Sub(w.Ended),
		BluePercent: m.bluePercent(w), BlueDelay: m.blueDelay(w),
		Redelivered: countBetween(m.redelivered, w.Struck, w.Over), Done: countBetween(m.completed, w.Struck, w.Over),
	}
	if w.Recovered.IsZero() {
		f.Stuck, f.Recovery = true, w.Over.Sub(w.Ended)
	}
	m.addHeldFigures(&f, w)
	return f
}

// longestStall returns the longest gap between completed orders that ends in a span or reaches its end.
func (m *Meter) longestStall(from, to time.Time) (longest time.Duration) {
	i, last := firstFrom(m.completed, from), from
	if i > 0 {
		last = m.completed[i-1]
	}
	for ; i < len(m.completed) && !m.completed[i].After(to); i++ {
		longest, last = max(longest, m.completed[i].Sub(last)), m.completed[i]
	}
	return max(longest, to.Sub(last))
}

// bluePercent compares the rates at which blue messages were handled.
func (m *Meter) bluePercent(w Window) float64 {
	until := w.Ended
	if until.Sub(w.Struck) < Shortest {
		until = w.Struck.Add(Shortest)
	}
	before, during := 0, 0
	for _, d := range m.blue {
		switch {
		case isBetween(d.handled, w.Struck.Add(-Before), w.Struck):
			before++
		case isBetween(d.handled, w.Struck, until):
			during++
		}
	}
	if before == 0 {
		return 0
	}
	return 100 * (float64(during) / until.Sub(w.Struck).Seconds()) / (float64(before) / Before.Seconds())
}

// blueDelay returns the longest delay of the blue messages handled between the strike and the next fault.
// Messages not handled by then lower the rate.
func (m *Meter) blueDelay(w Window) (longest time.Duration) {
	for _, d := range m.blue {
		if isBetween(d.handled, w.Struck, w.Over) {
			longest = max(longest, d.handled.Sub(d.written))
		}
	}
	return longest
}

// addHeldFigures adds the figures that come from a window's samples.
func (m *Meter) addHeldFigures(f *Figures, w Window) {
	var first, last *Sample
	for i := range m.samples {
		s := &m.samples[i]
		if s.At.After(w.Over) {
			break
		}
		last = s
		if s.At.Before(w.Struck) {
			first = s
			continue
		}
		f.Held = max(f.Held, s.Held)
	}
	if first != nil {
		f.Dead, f.Deferred = last.Dead-first.Dead, int(last.Relay.Deferred-first.Relay.Deferred)
	}
}
