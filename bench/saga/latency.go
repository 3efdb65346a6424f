package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

const (
	latencyLoad     = 0.5 // of a capacity
	latencyLength   = 2   // slices
	latencyInFlight = 100_000
)

// measureLatency measures the time from start to completion at two rates. One is half of the slowest kind's
// capacity, which all kinds sustain; the other is half of the kind's own capacity.
func (b *bench) measureLatency(ctx context.Context, server *private.Server, subjects []*subject) error {
	least := math.Inf(1)
	for _, s := range subjects {
		if err := s.measureCapacity(ctx, b.slice); err != nil {
			return err
		}
		least = min(least, target.MedianOf(s.rates))
	}
	for _, s := range subjects {
		own := target.MedianOf(s.rates)
		if err := s.measureSpread(ctx, least*latencyLoad, b.slice, "half of the slowest's capacity"); err != nil {
			return err
		}
		if own == least {
			continue
		}
		if err := s.measureSpread(ctx, own*latencyLoad, b.slice, "half of its own capacity"); err != nil {
			return err
		}
	}
	return nil
}

// measureCapacity measures the rate, unless it is known.
func (s *subject) measureCapacity(ctx context.Context, slice time.Duration) error {
	if len(s.rates) > 0 {
		return nil
	}
	for range 2 { // the first warms up
		o, err := s.measureSlice(ctx, s.sagas, s.inFlight, offerSaturating)
		if err != nil {
			return err
		}
		s.rates = []float64{o.sagaRate()}
		s.sizeNextSlice(o.sagaRate(), slice)
	}
	return nil
}

// measureSpread prints how long sagas take at a rate.
func (s *subject) measureSpread(ctx context.Context, rate float64, slice time.Duration, what string) error {
	o, err := s.measureSlice(ctx, max(int(rate*latencyLength*slice.Seconds()), minSagas), latencyInFlight, offerPaced(rate))
	if err != nil {
		return err
	}
	fmt.Printf("latency %-6s %-20s at %5.0f sagas/s, %-30s p50 %6.1f, p99 %6.1f, worst %6.1f ms; %s\n",
		s.server.Name, s.name, rate, what+":", o.percentile(0.5), o.percentile(0.99), o.percentile(1), o.spent.used.FormatEach(o.sagas))
	return nil
}
