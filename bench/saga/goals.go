package main

import (
	"strings"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// A measured names the costs of a kind at a load.
type measured struct {
	kind string
	load quietLoad
}

// A quietGoal is an upper bound of a cost, or of the ratio of two.
type quietGoal struct {
	what string
	read func(cost) float64
	of   measured
	to   measured // the zero value: none
	most float64
}

func processorOf(c cost) float64 { return c.processor }
func loggedOf(c cost) float64    { return c.logged }
func medianOf(c cost) float64    { return c.p50 }
func tailOf(c cost) float64      { return c.p99 }

// quietGoals are those of sagas whose statements are queued.
var quietGoals = []quietGoal{
	{"processor", processorOf, measured{kindQueued, load60}, measured{kindDBOS, load60}, 1.2},
	{"processor", processorOf, measured{kindQueued, load60}, measured{kindDBOSTransaction, load60}, 1.2},
	{"processor", processorOf, measured{kindQueued, load150}, measured{kindDBOS, load150}, 1.2},
	{"processor", processorOf, measured{kindQueued, load150}, measured{kindDBOSTransaction, load150}, 1.2},
	{"statements", func(c cost) float64 { return c.statements }, measured{kindQueued, loadAlone}, measured{}, 25},
	{"writes", func(c cost) float64 { return c.writes }, measured{kindQueued, loadAlone}, measured{}, 7},
	{"p50-ms", medianOf, measured{kindQueued, loadAlone}, measured{}, 5},
	{"p99-ms", tailOf, measured{kindQueued, loadAlone}, measured{}, 12},
	{"p50-ms", medianOf, measured{kindQueued, loadHalf}, measured{}, 15},
	{"p99-ms", tailOf, measured{kindQueued, loadHalf}, measured{}, 60},
	{"processor", processorOf, measured{kindQueued, loadHalf}, measured{kindQueued, loadSaturated}, 1.5},
	{"processor", processorOf, measured{kindQueued, loadSaturated}, measured{kindDBOS, loadSaturated}, 0.4},
	{"processor", processorOf, measured{kindQueued, loadSaturated}, measured{kindDBOSTransaction, loadSaturated}, 0.4},
	{"processor", processorOf, measured{kindQueued, loadSaturated}, measured{kindGood, loadSaturated}, 0.35},
	{"statements", func(c cost) float64 { return c.statements }, measured{kindQueued, loadIdle}, measured{}, 3},
	{"processor-percent", cost.percent, measured{kindQueued, loadIdle}, measured{}, 0.2},
	{"processor", processorOf, measured{kindOrchestQueued, loadSaturated}, measured{kindQueued, loadSaturated}, 1.25},
	{"log-kB", loggedOf, measured{kindQueued, loadSaturated}, measured{}, 4.5},
	{"log-kB", loggedOf, measured{kindOrchestQueued, loadSaturated}, measured{}, 7},
}

// nameGoal returns the name of the target.
func (g quietGoal) nameGoal() string {
	name := "quiet/" + g.of.kind + "-" + string(g.of.load) + "-" + g.what
	switch {
	case g.to.kind == "":
	case g.to.kind == g.of.kind:
		name += "/" + string(g.to.load)
	default:
		name += "/" + g.to.kind
	}
	return strings.ReplaceAll(name, " ", "-")
}

// compareQuiet returns the targets whose kinds were measured, on the native server.
func (b *bench) compareQuiet(server *private.Server, subjects []*subject) (targets []target.Target) {
	if server != b.servers[0] {
		return nil
	}
	values := func(m measured, read func(cost) float64) (rounds []float64) {
		for _, s := range subjects {
			if s.name != m.kind {
				continue
			}
			for _, c := range s.costs[m.load] {
				rounds = append(rounds, read(c))
			}
		}
		return rounds
	}
	for _, g := range quietGoals {
		of := values(g.of, g.read)
		value, ok := target.MedianOf(of), len(of) > 0
		if g.to.kind != "" {
			value, ok = target.RatioOf(of, values(g.to, g.read))
		}
		if ok {
			targets = append(targets, target.Target{Name: g.nameGoal(), Value: value, Goal: g.most, AtMost: true})
		}
	}
	return targets
}
