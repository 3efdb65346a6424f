package main

import (
	"context"
	"fmt"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// A ratio compares two kinds.
type ratio struct {
	kind, to string
	goal     float64 // on the native server; 0: none
}

var ratios = []ratio{
	{kindOrchest, kindPlain, 5},
	{kindOrchest, kindDBOS, 3},
	{kindChoreo, kindPlain, 5},
	{kindChoreo, kindDBOS, 3},
	{kindQueued, kindPlain, 5},
	{kindQueued, kindDBOS, 3},
	{kindOrchestQueued, kindPlain, 5},
	{kindOrchestQueued, kindDBOS, 3},
	{kindQueued, kindDBOSTransaction, 0},
	{kindQueued, kindRiver, 0},
	{kindQueued, kindGood, 0},
	{kindOrchestQueued, kindDBOSTransaction, 0},
	{kindOrchestQueued, kindRiver, 0},
	{kindOrchestQueued, kindGood, 0},
}

// throughput measures how fast the kinds complete sagas.
func (b *bench) throughput(ctx context.Context, server *private.Server, subjects []*subject) error {
	for round := range b.rounds + 1 {
		for _, s := range subjects {
			o, err := s.measureSlice(ctx, s.sagas, s.inFlight, offerSaturating)
			if err != nil {
				return err
			}
			s.sizeNextSlice(o.sagaRate(), b.slice)
			if round == 0 { // it warms connections, caches and plans up
				continue
			}
			s.rates, s.total = append(s.rates, o.sagaRate()), s.total.addOutcome(o)
		}
	}
	for _, s := range subjects {
		if server == b.servers[0] {
			fmt.Printf("%-20s is %s, %d sagas in flight\n", s.name, s.way, s.inFlight)
		}
		fmt.Printf("throughput %-6s %-20s %6.0f sagas/s; %s\n", server.Name, s.name, target.MedianOf(s.rates), s.total)
	}
	return nil
}

// compareThroughput prints the ratios and returns those that are targets.
func (b *bench) compareThroughput(server *private.Server, subjects []*subject) (targets []target.Target) {
	rates := map[string][]float64{}
	for _, s := range subjects {
		rates[s.name] = s.rates
	}
	for _, r := range ratios {
		value, ok := target.RatioOf(rates[r.kind], rates[r.to])
		if !ok {
			continue
		}
		fmt.Printf("throughput %-6s %s/%s %.2f\n", server.Name, r.kind, r.to, value)
		if server == b.servers[0] && r.goal > 0 {
			targets = append(targets, target.Target{Name: "saga/" + r.kind + "-" + r.to, Value: value, Goal: r.goal})
		}
	}
	return targets
}
