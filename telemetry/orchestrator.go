package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/saga"
)

// RegisterOrchestrator measures o, and the saga instances of its schema, at each collection
// until the registration is unregistered. It starts nothing, and o need not run: the instances
// are measured in any case. A nil opts means the defaults. An error is about an argument, or
// comes from the meter provider.
//
// If the database does not answer within [Options].Timeout, the instances are missing from
// that collection and OpenTelemetry's error handler receives the error. All other metrics are
// collected.
func RegisterOrchestrator(o *saga.Orchestrator, opts *Options) (metric.Registration, error) {
	if o == nil {
		return nil, errors.New("telemetry: RegisterOrchestrator needs an orchestrator")
	}
	return register(scopeOrchestrator, &orchestratorSource{orchestrator: o}, opts)
}

// An orchestratorSource reads one orchestrator and the instances of its schema.
type orchestratorSource struct {
	orchestrator *saga.Orchestrator

	live                  metric.Int64ObservableGauge
	oldest, held, overdue metric.Float64ObservableGauge
	instances, late       metric.Int64ObservableCounter
}

func (s *orchestratorSource) makeInstruments(i *instruments) {
	i.observeGauge(&s.live, "sagamill.saga.instances_live", "{instance}", "Instances that have not ended, by status.")
	i.observeSecondsGauge(&s.oldest, "sagamill.saga.oldest_stuck_seconds", "How long a stuck instance has waited for a person.")
	i.observeSecondsGauge(&s.held, "sagamill.saga.oldest_held_seconds", "How long a dead letter at a participant has held up an instance.")
	i.observeSecondsGauge(&s.overdue, "sagamill.saga.overdue_seconds", "How long an instance has been due that no orchestrator has looked at.")
	i.observeCounter(&s.instances, "sagamill.saga.instances", "{instance}", "Instances that have ended or become stuck, by status.")
	i.observeCounter(&s.late, "sagamill.saga.late_replies", "{reply}", "Replies that nobody waited for.")
}

func (s *orchestratorSource) reportProcess(r *report) {
	c := s.orchestrator.Counters()
	for status, n := range map[saga.Status]uint64{
		saga.StatusCompleted: c.Completed, saga.StatusCompensated: c.Compensated, saga.StatusStuck: c.Stuck,
	} {
		r.setCount(s.instances, int64(n), labelStatus.String(string(status)))
	}
	r.setCount(s.late, int64(c.Late))
}

func (s *orchestratorSource) reportDatabase(ctx context.Context, r *report) error {
	stats, err := s.orchestrator.Stats(ctx)
	if err != nil {
		return err
	}
	for status, n := range map[saga.Status]int{
		saga.StatusRunning: stats.Running, saga.StatusCompensating: stats.Compensating, saga.StatusPaused: stats.Paused, saga.StatusStuck: stats.Stuck,
	} {
		r.setCount(s.live, int64(n), labelStatus.String(string(status)))
	}
	r.setSeconds(s.oldest, stats.OldestStuck)
	r.setSeconds(s.held, stats.OldestHeld)
	r.setSeconds(s.overdue, stats.Overdue)
	return nil
}
