package rabbitmq

// The prefetch follows the sizes of the messages in steps, because each step renews the
// subscription. What was seen lately is this period of deliveries and the one before.
const (
	// longPeriod is how many deliveries a period has at most.
	longPeriod = 512

	// shortPeriod is how many it must have to end at a look at the topology. A few small
	// messages say nothing about the next ones.
	shortPeriod = 32

	// growthFactor is how many times as large the prefetch must become, unless it reaches the
	// most that is allowed.
	growthFactor = 2
)

// sizes remembers the largest payload seen lately. One goroutine uses it.
type sizes struct {
	largest int // of this period
	before  int // largest of the period before
	seen    int // deliveries of this period
}

// add counts a delivery with so many bytes of payload.
func (z *sizes) add(bytes int) {
	z.largest = max(z.largest, bytes)
	if z.seen++; z.seen >= longPeriod {
		z.turn()
	}
}

// lookBack ends the period if it has seen enough.
func (z *sizes) lookBack() {
	if z.seen >= shortPeriod {
		z.turn()
	}
}

func (z *sizes) turn() { z.before, z.largest, z.seen = z.largest, 0, 0 }

// fit returns how many messages like the largest have limit bytes, at least 1 and at most most.
func (z *sizes) fit(limit, most int) int {
	largest := max(z.largest, z.before)
	if largest == 0 {
		return most
	}
	return max(1, min(limit/largest, most))
}

// prefetch returns how many messages the next epoch may be sent ahead of their acks.
func (s *subscription) prefetch() int {
	if s.single {
		return 1
	}
	return s.sizes.fit(s.subscriber.opts.PrefetchBytes, s.subscriber.opts.Prefetch)
}

// misfit reports whether e is to be renewed with another prefetch: the payloads that are here
// have reached their limit, or all of a larger prefetch would have room.
func (s *subscription) misfit(e *epoch) bool {
	fit, most := s.prefetch(), s.subscriber.opts.Prefetch
	switch {
	case s.single:
		return false
	case fit < e.prefetch:
		return s.lanes.full()
	}
	return fit > e.prefetch && (fit == most || fit >= growthFactor*e.prefetch)
}
