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
	firstSagas   = 300 // in the round that does not count
	minSagas     = 200 // in later rounds, when the rates are known
	maxSagas     = 30_000
	warmShare    = 0.2 // of a slice's sagas: so many run before it, with the same load
	sliceTimeout = time.Minute
)

// A way executes sagas. To add one, write a file with a way and add its kind.
type way interface {
	fmt.Stringer // its settings
	// clearSagas deletes all sagas.
	clearSagas(ctx context.Context) error
	// runServices runs the services until stop is called. It calls done with the order id of each saga, once the
	// last step has committed.
	runServices(ctx context.Context, done func(id string), fail func(error)) (stop func() error, err error)
	// startSaga begins the saga of o. After nil the saga completes even if a process dies.
	startSaga(ctx context.Context, o *order) error
	// checkEffects returns an error unless each of n sagas had each effect once.
	checkEffects(ctx context.Context, n int) error
	closeWay() error
}

// A subject is a way that is ready to be measured.
type subject struct {
	*place
	way
	kind
	sagas int       // in one slice
	rates []float64 // of the rounds
	total outcome
	costs map[quietLoad][]cost // of the rounds
}

// newSubjects opens the kinds on s. After an error some are open.
func (b *bench) newSubjects(ctx context.Context, s *private.Server) (subjects []*subject, err error) {
	for _, k := range b.kinds {
		p, err := b.createPlace(ctx, s, k.name)
		if err != nil {
			return subjects, fmt.Errorf("%s: %w", k.name, err)
		}
		w, err := k.open(ctx, p)
		if err != nil {
			p.all.Close()
			return subjects, fmt.Errorf("%s: %w", k.name, err)
		}
		subjects = append(subjects, &subject{place: p, way: w, kind: k, sagas: firstSagas, costs: map[quietLoad][]cost{}})
	}
	return subjects, nil
}

func closeSubjects(subjects []*subject) error {
	var faults []error
	for _, s := range subjects {
		faults = append(faults, s.way.closeWay())
		s.all.Close()
	}
	return errors.Join(faults...)
}

// An outcome is the measurement of one or more slices.
type outcome struct {
	sagas int
	took  time.Duration // from the first start to the last completion
	spent effort
	each  []time.Duration // how long the sagas took

	logFrom, logTo int64 // the part of the write-ahead log that was written meanwhile
}

func (o outcome) addOutcome(p outcome) outcome {
	return outcome{sagas: o.sagas + p.sagas, took: o.took + p.took, spent: o.spent.addEffort(p.spent)}
}

func (o outcome) sagaRate() float64 { return float64(o.sagas) / o.took.Seconds() }

func (o outcome) String() string {
	return fmt.Sprintf("%.0f bytes of log for each; %s", float64(o.spent.logged)/float64(o.sagas), o.spent.used.FormatEach(o.sagas))
}

// percentile returns the duration, in milliseconds, that a share p of the sagas did not exceed.
func (o outcome) percentile(p float64) float64 {
	return target.Milliseconds(target.Percentile(o.each, p))
}

// A load starts n sagas of w and records them in l.
type load func(ctx context.Context, w way, l *ledger, n int) error

// measureSlice runs n sagas and checks their effects. A share of them runs before, so that connections, plans and
// caches are warm: a slice begins with empty tables, for which the server plans anew.
func (s *subject) measureSlice(ctx context.Context, n, inFlight int, offer load) (o outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, sliceTimeout)
	defer cancel()
	if err = errors.Join(s.way.clearSagas(ctx), s.purgeQueues()); err == nil {
		_, err = s.all.Exec(ctx, "CHECKPOINT") // otherwise one may fall into the slice
	}
	warm := int(warmShare * float64(n))
	if err == nil {
		o, err = s.workThrough(ctx, warm, n, inFlight, offer)
	}
	if err == nil {
		err = errors.Join(s.way.checkEffects(ctx, 1+warm+n), s.checkSettled())
	}
	if err != nil {
		return o, fmt.Errorf("%s: %w", s.name, err)
	}
	return o, nil
}

// workThrough runs one saga, then warm sagas that do not count, then n.
func (s *subject) workThrough(ctx context.Context, warm, n, inFlight int, offer load) (o outcome, err error) {
	l := newLedger(1+warm+n, inFlight)
	stop, err := s.way.runServices(ctx, l.completed, l.reportFailure)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := s.runFirst(ctx, l); err != nil {
		return o, fmt.Errorf("first saga: %w", err)
	}
	if err := offer(ctx, s.way, l, warm); err != nil {
		return o, err
	}
	if err := l.waitUntilDone(ctx, 1+warm); err != nil {
		return o, err
	}
	if err := s.beginListing(ctx); err != nil {
		return o, err
	}
	before, err := s.readEffort(ctx)
	if err != nil {
		return o, err
	}
	begun := time.Now()
	if err := offer(ctx, s.way, l, n); err != nil {
		return o, err
	}
	if err := l.waitUntilDone(ctx, 1+warm+n); err != nil {
		return o, err
	}
	o = outcome{sagas: n, took: time.Since(begun), each: l.took[1+warm:]}
	after, err := s.readEffort(ctx)
	o.spent, o.logFrom, o.logTo = after.subtractEffort(before), before.logged, after.logged
	return o, errors.Join(err, s.listStatements(ctx, float64(n)))
}

// runFirst runs one saga before those that count: once it is completed, all connections are open.
func (s *subject) runFirst(ctx context.Context, l *ledger) error {
	o := randomOrder()
	if err := l.beginSaga(ctx, o.OrderID, time.Time{}); err != nil {
		return err
	}
	if err := s.way.startSaga(ctx, o); err != nil {
		return err
	}
	return l.waitUntilDone(ctx, 1)
}

// sizeNextSlice sets the number of sagas that keep a subject of that rate busy for a slice.
func (s *subject) sizeNextSlice(rate float64, slice time.Duration) {
	s.sagas = min(max(int(rate*slice.Seconds()), minSagas), maxSagas)
}
