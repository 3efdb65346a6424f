package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

const (
	warmBacklog = 500     // messages in the round that does not count
	minBacklog  = 200     // in later rounds, when the rates are known
	maxBacklog  = 100_000 // a fast slot is done before its slice is over
)

// A ratio compares two slots. Without a goal it is for information.
type ratio struct {
	slot, to string
	goal     float64
}

var drainRatios = []ratio{
	{"ours-log", "raw", 0.85},
	{"ours-log", "forwarder-default", 20},
	{"ours-log", "forwarder-pool1", 8},
	{"ours-log", "river-style", 0},
	{"river-style", "raw", 0},
}

// measureDrains compares how fast the slots move a backlog to the broker.
func (b *bench) measureDrains(ctx context.Context) ([]target.Target, error) {
	var targets []target.Target
	for _, s := range b.servers {
		rates, err := b.drainRates(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", s.Name, err)
		}
		for _, sl := range slots {
			if of := rates[sl.name]; of != nil {
				fmt.Printf("drain %-6s %-17s %6.0f msg/s\n", s.Name, sl.name, target.MedianOf(of))
			}
		}
		for _, r := range drainRatios {
			value, ok := target.RatioOf(rates[r.slot], rates[r.to])
			switch {
			case ok && r.goal > 0:
				targets = append(targets, target.Target{Name: fmt.Sprintf("drain-%s-%s/%s", s.Name, r.slot, r.to), Value: value, Goal: r.goal})
			case ok:
				fmt.Printf("drain %-6s %s/%s %.2f\n", s.Name, r.slot, r.to, value)
			}
		}
	}
	return targets, nil
}

// drainRates returns the messages per second of each slot in each round.
func (b *bench) drainRates(ctx context.Context, s *private.Server) (rates map[string][]float64, err error) {
	var subjects []*subject
	defer func() {
		for _, sub := range subjects {
			err = errors.Join(err, sub.closeSubject())
		}
	}()
	for _, sl := range slots {
		if sl.open == nil {
			continue
		}
		sub, err := b.newSubject(ctx, s, sl, "drain")
		if err != nil {
			return nil, fmt.Errorf("slot %s: %w", sl.name, err)
		}
		sub.backlog = warmBacklog
		subjects = append(subjects, sub)
	}
	defer func() {
		for _, sub := range subjects {
			fmt.Printf("drain %-6s %-17s %s\n", s.Name, sub.slot, sub.used.FormatEach(sub.drained))
		}
	}()
	rates = make(map[string][]float64)
	for round := range b.rounds + 1 {
		for _, sub := range subjects {
			took, err := sub.drainOutbox(ctx, sub.backlog)
			if err != nil {
				return nil, fmt.Errorf("slot %s: %w", sub.slot, err)
			}
			rate := float64(sub.backlog) / took.Seconds()
			sub.backlog = backlogSize(rate, b.slice)
			if round > 0 { // the first warms connections, caches and plans up
				rates[sub.slot] = append(rates[sub.slot], rate)
			}
		}
	}
	return rates, nil
}

// backlogSize returns how many messages keep a slot of that rate busy for a slice.
func backlogSize(rate float64, slice time.Duration) int {
	return min(max(int(rate*slice.Seconds()), minBacklog), maxBacklog)
}
