package main

import (
	"context"
	"fmt"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

const sweepPart = "sweep"

// sweepInFlight are the numbers of sagas in flight that a sweep tries.
var sweepInFlight = []int{64, 256, 1024, 2048, 4096}

// measureSweep prints each kind's rate with each number of sagas in flight, and which is best. Kinds and numbers
// alternate.
func (b *bench) measureSweep(ctx context.Context, server *private.Server, subjects []*subject) error {
	rates := map[*subject]map[int][]float64{}
	for _, s := range subjects {
		rates[s] = map[int][]float64{}
		if err := s.measureCapacity(ctx, b.slice); err != nil {
			return err
		}
	}
	for range b.rounds {
		for _, inFlight := range sweepInFlight {
			for _, s := range subjects {
				o, err := s.measureSlice(ctx, max(s.sagas, inFlight), inFlight, offerSaturating)
				if err != nil {
					return fmt.Errorf("%d in flight: %w", inFlight, err)
				}
				rates[s][inFlight] = append(rates[s][inFlight], o.sagaRate())
			}
		}
	}
	for _, s := range subjects {
		best, line := sweepInFlight[0], ""
		for _, inFlight := range sweepInFlight {
			if target.MedianOf(rates[s][inFlight]) > target.MedianOf(rates[s][best]) {
				best = inFlight
			}
			line += fmt.Sprintf(" %d: %.0f/s;", inFlight, target.MedianOf(rates[s][inFlight]))
		}
		fmt.Printf("sweep %-6s %-20s sagas in flight%s best: %d, now: %d\n", server.Name, s.name, line, best, s.inFlight)
	}
	return nil
}
