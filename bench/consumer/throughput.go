package main

import (
	"context"
	"fmt"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// A ratio compares two kinds. Without a goal it is for information.
type ratio struct {
	kind, to     string
	name         string // of the target, with the server in the place of %s
	native, slow float64
}

var ratios = []ratio{
	{kind: kindSingle, to: kindPlain1},
	{kind: kindSingle, to: kindPlain8},
	{kind: kindBatch, to: kindPlain1, name: "consumer-%s-1", native: 5, slow: 15},
	{kind: kindBatch, to: kindPlain8, name: "consumer-%s-8", native: 2, slow: 4},
	{kind: kindQueued, to: kindPlain1},
	{kind: kindQueued, to: kindPlain8},
	{kind: kindBatch, to: kindRaw},
	{kind: kindServed, to: kindBatch, name: "service-%s-by-hand", native: 0.95, slow: 0.95},
}

// throughputs compares how fast the kinds work off a backlog.
func (b *bench) throughputs(ctx context.Context) (targets []target.Target, err error) {
	for i, s := range b.servers {
		rates, err := b.measureRates(ctx, s, i == 0)
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", s.Name, err)
		}
		for _, r := range ratios {
			value, ok := target.RatioOf(rates[r.kind], rates[r.to])
			if !ok {
				continue
			}
			goal := r.native
			if i > 0 {
				goal = r.slow
			}
			if goal > 0 {
				targets = append(targets, target.Target{Name: fmt.Sprintf(r.name, s.Name), Value: value, Goal: goal})
			}
			fmt.Printf("throughput %-6s %s/%s %.2f\n", s.Name, r.kind, r.to, value)
		}
	}
	return targets, nil
}

// measureRates returns the messages per second of each kind in each round.
func (b *bench) measureRates(ctx context.Context, s *private.Server, describe bool) (map[string][]float64, error) {
	subjects, err := b.newSubjects(ctx, s, "throughput", kindNames()...)
	if err != nil {
		return nil, err
	}
	defer closeSubjects(subjects)
	rates := make(map[string][]float64)
	for round := range b.rounds + 1 {
		for _, sub := range subjects {
			o, err := sub.drainQueue(ctx, sub.backlog, true)
			if err != nil {
				return nil, err
			}
			sub.sizeNextSlice(o.messageRate(), b.slice)
			if round == 0 { // it warms connections, caches and plans up
				sub.total = outcome{}
				continue
			}
			rates[sub.name] = append(rates[sub.name], o.messageRate())
		}
	}
	for _, sub := range subjects {
		if describe {
			fmt.Printf("%-11s is %s\n", sub.name, sub.way)
		}
		fmt.Printf("throughput %-6s %-11s %6.0f msg/s; %s\n", s.Name, sub.name, target.MedianOf(rates[sub.name]), sub.total)
	}
	return rates, nil
}

// newSubjects opens several kinds on s.
func (b *bench) newSubjects(ctx context.Context, s *private.Server, use string, names ...string) (subjects []*subject, err error) {
	for _, name := range names {
		sub, err := b.newSubject(ctx, s, name, use)
		if err != nil {
			closeSubjects(subjects)
			return nil, err
		}
		subjects = append(subjects, sub)
	}
	return subjects, nil
}

func closeSubjects(subjects []*subject) {
	for _, s := range subjects {
		s.closePool()
	}
}
