// Package sagaotel tells OpenTelemetry how orchestrated sagas are doing.
//
// # Of the instances
//
// These are read from the database when metrics are collected. Each process with an
// orchestrator of the schema reports the same, so that a dashboard takes their maximum, never their sum.
//
//	sagamill.saga.instances_live        {instance}  status  running, compensating, paused by a person, or stuck: a person is
//	                                                        needed. Nested ones count too; outbox.CountLimit are looked at in all
//	sagamill.saga.oldest_stuck_seconds  s           for how long nothing has happened to a stuck one, of the one for which that is longest;
//	                                                0 if none is stuck
//	sagamill.saga.overdue_seconds       s           for how long the one that is to go on next has been due; 0 if there is none
//
// # Of this process's orchestrator
//
// Take the sum over processes.
//
//	sagamill.saga.instances     {instance}  status  completed and compensated: have ended so; stuck: times that one became so
//	sagamill.saga.late_replies  {reply}     that nobody waited for
//
// An exporter to Prometheus makes sagamill_saga_instances_live, sagamill_saga_instances_total
// and so on of these names. What an orchestrator's steps do as a consumer, and what is parked of its replies, package
// consumerotel tells of [saga.Orchestrator.Consumer].
//
// Alert on instances_live with the status stuck, which stays up until somebody has looked. Where more than
// outbox.CountLimit instances live a stuck one may not be among those that are looked at: there also
// on a rise of instances with that status.
//
// # Labels
//
// Statuses are fixed. Definitions, keys and scopes are no labels: the command sagamill saga list tells.
package sagaotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sagamill/sagamill/saga"
)

// scopeName names the instrumentation.
const scopeName = "github.com/sagamill/sagamill/saga/sagaotel"

// keyStatus is the label.
const keyStatus = attribute.Key("status")

// defaultTimeout is less than any reader's own.
const defaultTimeout = 2 * time.Second

// Options are what most callers leave alone.
type Options struct {
	MeterProvider metric.MeterProvider // default: the global one

	// Timeout is how long a collection waits for the database at most.
	// Default: 2 s.
	Timeout time.Duration

	// Attributes are of every measurement. A process with several orchestrators tells
	// them apart by one, such as the service's name. Default: none.
	Attributes []attribute.KeyValue
}

// Register lets o be measured at each collection, until the registration is
// unregistered. It starts nothing, and o need not run: what the database
// tells is told in any case. A nil opts means the defaults. An error is about an
// option, or the meter provider's about an instrument.
//
// When the database does not answer, its part is missing from the collection, the
// error goes to OpenTelemetry's error handler, and everything else is collected:
// the error of a callback would make a reader drop the measurements of the whole
// process.
func Register(o *saga.Orchestrator, opts *Options) (metric.Registration, error) {
	options := Options{}
	if opts != nil {
		options = *opts
	}
	if o == nil {
		return nil, errors.New("sagaotel: Register needs an orchestrator")
	}
	if options.Timeout < 0 {
		return nil, fmt.Errorf("sagaotel: option Timeout: %s is negative", options.Timeout)
	}
	if options.Timeout == 0 {
		options.Timeout = defaultTimeout
	}
	if options.MeterProvider == nil {
		options.MeterProvider = otel.GetMeterProvider()
	}
	r := reporter{orchestrator: o, timeout: options.Timeout, attributes: slices.Clone(options.Attributes)}
	registration, err := r.register(options.MeterProvider.Meter(scopeName))
	if err != nil {
		return nil, fmt.Errorf("sagaotel: %w", err)
	}
	return registration, nil
}

// A reporter measures one orchestrator.
type reporter struct {
	orchestrator *saga.Orchestrator
	timeout      time.Duration
	attributes   []attribute.KeyValue

	live            metric.Int64ObservableGauge
	oldest, overdue metric.Float64ObservableGauge
	instances, late metric.Int64ObservableCounter
}

func (r *reporter) register(meter metric.Meter) (metric.Registration, error) {
	var errs [5]error
	r.live, errs[0] = meter.Int64ObservableGauge("sagamill.saga.instances_live", metric.WithUnit("{instance}"),
		metric.WithDescription("Instances that have not ended, by status."))
	r.oldest, errs[1] = meter.Float64ObservableGauge("sagamill.saga.oldest_stuck_seconds", metric.WithUnit("s"),
		metric.WithDescription("How long a stuck instance has waited for a person."))
	r.overdue, errs[2] = meter.Float64ObservableGauge("sagamill.saga.overdue_seconds", metric.WithUnit("s"),
		metric.WithDescription("How long an instance has been due that no orchestrator has looked at."))
	r.instances, errs[3] = meter.Int64ObservableCounter("sagamill.saga.instances", metric.WithUnit("{instance}"),
		metric.WithDescription("Instances that have ended or become stuck, by status."))
	r.late, errs[4] = meter.Int64ObservableCounter("sagamill.saga.late_replies", metric.WithUnit("{reply}"),
		metric.WithDescription("Replies that nobody waited for."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(r.report, r.live, r.oldest, r.overdue, r.instances, r.late)
}

// report is called at each collection. It never returns an error: see [Register].
func (r *reporter) report(ctx context.Context, o metric.Observer) error {
	r.reportProcess(o)
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	s, err := r.orchestrator.Stats(ctx)
	if err != nil {
		otel.Handle(fmt.Errorf("sagaotel: %w", err))
		return nil
	}
	for status, n := range map[saga.Status]int{
		saga.StatusRunning: s.Running, saga.StatusCompensating: s.Compensating, saga.StatusPaused: s.Paused, saga.StatusStuck: s.Stuck,
	} {
		o.ObserveInt64(r.live, int64(n), r.with(keyStatus.String(string(status))))
	}
	o.ObserveFloat64(r.oldest, s.OldestStuck.Seconds(), r.with())
	o.ObserveFloat64(r.overdue, s.Overdue.Seconds(), r.with())
	return nil
}

func (r *reporter) reportProcess(o metric.Observer) {
	c := r.orchestrator.Counters()
	for status, n := range map[saga.Status]uint64{
		saga.StatusCompleted: c.Completed, saga.StatusCompensated: c.Compensated, saga.StatusStuck: c.Stuck,
	} {
		o.ObserveInt64(r.instances, int64(n), r.with(keyStatus.String(string(status))))
	}
	o.ObserveInt64(r.late, int64(c.Late), r.with())
}

// with returns labels beside those of every measurement.
func (r *reporter) with(labels ...attribute.KeyValue) metric.ObserveOption {
	return metric.WithAttributes(append(slices.Clone(r.attributes), labels...)...)
}
