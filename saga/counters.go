package saga

import "sync/atomic"

// counters are the numbers of an Orchestrator.
type counters struct{ completed, compensated, stuck, late atomic.Uint64 }

// Counters are what an Orchestrator has done since it was made. A transaction that was
// repeated counts twice.
type Counters struct {
	Completed, Compensated uint64 // instances that have ended so
	Stuck                  uint64 // times that an instance became stuck
	Late                   uint64 // replies that nobody waited for
}

// Counters returns them. It is cheap, and may be called at any time.
func (o *Orchestrator) Counters() Counters {
	return Counters{o.counters.completed.Load(), o.counters.compensated.Load(), o.counters.stuck.Load(), o.counters.late.Load()}
}
