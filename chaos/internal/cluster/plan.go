package cluster

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/cluster/fault"
	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
)

// The kinds of stages.
const (
	plain   = "plain"   // quorum queues, whose messages have no order
	ordered = "ordered" // quorum queues with a single active consumer, and ordering keys
	classic = "classic" // classic queues, all of them on one node
	secure  = "tls"     // quorum queues, over TLS
)

// A stage is one shop on a cluster, with the faults that strike it.
type stage struct {
	partitions string // how the cluster handles partitions
	kind       string
	faults     []fault.Fault // of the first round
	later      []fault.Fault // of the rounds after it, while orders are to be written
	orders     int           // orders to write, at least
}

func (s *stage) String() string { return s.partitions + "/" + s.kind }

// planStages returns the plan of a run: for each cluster its stages, in the order in which they
// run.
func planStages(o *Options) ([][]stage, error) {
	all := fault.AllFaults(o.NoMajority)
	var plans [][]stage
	if o.Brief {
		plans = briefStages(all)
	} else {
		plans = fullStages(all, o.Order == OrderBoth && len(o.Only) == 0)
	}
	plans = o.pickStages(plans)
	if len(plans) == 0 {
		return nil, fmt.Errorf("-only: no fault is named %v", o.Only)
	}
	shareOrders(plans, o.Orders)
	return plans, nil
}

// ofQuorum are the faults of quorum queues on a cluster that ignores partitions. ofOrder are those of them that
// move consumers and leaders without warning.
var (
	ofQuorum = []string{
		fault.KillLeader, fault.KillIdle, fault.StopLeader, fault.FreezeLeader, fault.RollingRestart, fault.Partition,
		fault.OneWay, fault.MemoryAlarm, fault.DiskAlarm, fault.RedNoMajority, fault.RedResized, fault.KillAll,
	}
	ofOrder = []string{fault.KillLeader, fault.FreezeLeader, fault.Partition, fault.KillAll}
)

// fullStages returns the stages of a whole run. In a short run, keys with an order meet only the faults that
// endanger the order; other faults come in later rounds.
func fullStages(all []fault.Fault, short bool) [][]stage {
	inOrder := newStage(all, rabbitcluster.Ignore, ordered, ofQuorum...)
	if short {
		inOrder.faults = newStage(all, rabbitcluster.Ignore, ordered, ofOrder...).faults
	}
	return [][]stage{
		{
			newStage(all, rabbitcluster.Ignore, plain, ofQuorum...),
			inOrder,
			newStage(all, rabbitcluster.Ignore, classic, fault.KillIdle, fault.KillHost),
			newStage(all, rabbitcluster.Ignore, secure, fault.KillLeader),
		},
		{
			newStage(all, rabbitcluster.PauseMinority, plain, fault.Partition),
			newStage(all, rabbitcluster.PauseMinority, ordered, fault.Partition),
		},
		{
			newStage(all, rabbitcluster.Autoheal, plain, fault.Partition),
			newStage(all, rabbitcluster.Autoheal, ordered, fault.Partition),
		},
	}
}

// How long the faults of a brief run last. Nodes need up to five seconds to notice a cut.
const (
	briefDown = time.Second
	briefCut  = 8 * time.Second
	briefRed  = 5 * time.Second
)

// briefStages returns the stages of the run that is a part of make test.
func briefStages(all []fault.Fault) [][]stage {
	st := newStage(all, rabbitcluster.PauseMinority, plain, fault.KillLeader, fault.Partition, fault.RedNoMajority)
	for i, hold := range []time.Duration{briefDown, briefCut, briefRed} {
		st.faults[i].Hold = hold
	}
	return [][]stage{{st}}
}

func newStage(all []fault.Fault, partitions, kind string, names ...string) stage {
	st := stage{partitions: partitions, kind: kind}
	for _, name := range names {
		st.faults = append(st.faults, *fault.FindFault(all, name))
	}
	st.later = st.faults
	return st
}

// pickStages keeps the stages and faults that the options select.
func (o *Options) pickStages(plans [][]stage) (picked [][]stage) {
	for _, plan := range plans {
		var left []stage
		for _, st := range plan {
			unwanted := func(f fault.Fault) bool { return !o.wantsFault(&st, f.Name) }
			st.faults = slices.DeleteFunc(slices.Clone(st.faults), unwanted)
			st.later = slices.DeleteFunc(slices.Clone(st.later), unwanted)
			if len(st.faults) > 0 {
				left = append(left, st)
			}
		}
		if len(left) > 0 {
			picked = append(picked, left)
		}
	}
	return picked
}

// wantsFault reports whether the options select a fault of a stage.
func (o *Options) wantsFault(st *stage, name string) bool {
	if o.Order == OrderOnly && st.kind != ordered || o.Order == OrderNever && st.kind == ordered {
		return false
	}
	if len(o.Only) == 0 {
		return true
	}
	return slices.ContainsFunc([]string{name, st.partitions, st.kind, st.String(), st.String() + "/" + name}, func(word string) bool {
		return slices.Contains(o.Only, word)
	})
}

// sideWeight is the share of orders for classic queues and for TLS, relative to plain queues. Plain and ordered
// queues have the same weight.
const sideWeight = 0.1

// shareOrders gives each stage its share of the orders: by its kind, and within a kind by its number of faults.
func shareOrders(plans [][]stage, orders int) {
	faults, weights := map[string]int{}, map[string]float64{}
	for _, plan := range plans {
		for _, st := range plan {
			faults[st.kind] += len(st.faults)
			weights[st.kind] = 1
			if st.kind == classic || st.kind == secure {
				weights[st.kind] = sideWeight
			}
		}
	}
	total := 0.0
	for _, weight := range weights {
		total += weight
	}
	for _, plan := range plans {
		for i, st := range plan {
			part := weights[st.kind] / total * float64(len(st.faults)) / float64(faults[st.kind])
			plan[i].orders = int(math.Ceil(part * float64(orders)))
		}
	}
}
