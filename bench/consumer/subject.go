package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/proctime"
)

const (
	warmBacklog  = 500 // messages in the round that does not count
	minBacklog   = 200 // in later rounds, when the rates are known
	maxBacklog   = 40_000
	drainTimeout = 2 * time.Minute // of one backlog
)

// A way consumes a queue and makes effects.
type way interface {
	fmt.Stringer // its settings
	// clearEffects deletes all effects.
	clearEffects(ctx context.Context) error
	// startConsuming consumes until stop is called. Handlers report to seen.
	startConsuming(ctx context.Context, seen *progress) (*running, error)
	// checkEffects returns an error unless each of n messages had its effect once.
	checkEffects(ctx context.Context, n int) error
}

// A running is a consumer at work.
type running struct {
	failed chan error // gets the reason if it ends before stop
	stop   func() error
}

// reportFailure reports err, if it is the first.
func (r *running) reportFailure(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

// A kind is a way to compare. Kinds are listed in the order of a round.
type kind struct {
	name string
	open func(ctx context.Context, p *place) (way, error)
}

// A subject is a way that is ready to be measured.
type subject struct {
	*place
	way
	name    string
	backlog int // messages in one slice
	total   outcome
}

// newSubject opens a kind on s, with tables and a queue for this use alone.
func (b *bench) newSubject(ctx context.Context, s *private.Server, name, use string) (*subject, error) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	p, err := b.createPlace(ctx, s, use+"-"+name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w, err := kinds[i].open(ctx, p)
	if err != nil {
		p.pool.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &subject{place: p, way: w, name: name, backlog: warmBacklog}, nil
}

func (s *subject) closePool() { s.pool.Close() }

// An outcome is the measurement of one or more slices.
type outcome struct {
	messages int
	took     time.Duration // from the first handler to the last commit
	logged   int64         // bytes in the write-ahead log
	used     proctime.Usage
}

func (o outcome) addOutcome(p outcome) outcome {
	return outcome{o.messages + p.messages, o.took + p.took, o.logged + p.logged, o.used.AddUsage(p.used)}
}

func (o outcome) messageRate() float64 { return float64(o.messages) / o.took.Seconds() }

func (o outcome) bytesEach() float64 { return float64(o.logged) / float64(o.messages) }

func (o outcome) String() string {
	return fmt.Sprintf("%.0f bytes of log for each; %s", o.bytesEach(), o.used.FormatEach(o.messages))
}

// prepareSlice makes a backlog of n messages for empty tables. The checkpoint keeps another one from falling
// into the slice. The tables are not vacuumed: if the server knew that a table is empty, it would keep plans
// that read all of it.
func (s *subject) prepareSlice(ctx context.Context, n int, checkpoint bool) error {
	err := errors.Join(s.way.clearEffects(ctx), s.queue.PurgeQueue())
	if err == nil {
		err = fillQueue(ctx, s.queue, n)
	}
	if err == nil && checkpoint {
		_, err = s.pool.Exec(ctx, "CHECKPOINT")
	}
	return err
}

// drainQueue measures a slice of n messages.
func (s *subject) drainQueue(ctx context.Context, n int, checkpoint bool) (o outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := s.prepareSlice(ctx, n, checkpoint); err != nil {
		return o, fmt.Errorf("%s: prepare: %w", s.name, err)
	}
	if o, err = s.measureSlice(ctx, n); err != nil {
		return o, fmt.Errorf("%s: %w", s.name, err)
	}
	s.total = s.total.addOutcome(o)
	return o, s.verifyEffects(ctx, n)
}

// measureSlice consumes the backlog that prepareSlice has stored.
func (s *subject) measureSlice(ctx context.Context, n int) (o outcome, err error) {
	before, err := s.bytesLogged(ctx)
	if err != nil {
		return o, err
	}
	seen, used := newProgress(n), proctime.ReadUsage()
	r, err := s.way.startConsuming(ctx, seen)
	if err != nil {
		return o, err
	}
	if err = seen.waitUntilDone(ctx, r.failed); err == nil && !s.isCeiling() {
		err = s.committed(ctx, n)
	}
	if err == nil {
		o = outcome{messages: n, took: time.Since(seen.begun), used: proctime.ReadUsage().UsedSince(used)}
	}
	if err = errors.Join(err, r.stop()); err != nil {
		return o, err
	}
	after, err := s.bytesLogged(ctx)
	o.logged = after - before
	return o, err
}

// isCeiling reports whether the way has no effects.
func (s *subject) isCeiling() bool {
	_, is := s.way.(*raw)
	return is
}

// verifyEffects checks the effects of a slice, and that no message went back to the queue.
func (s *subject) verifyEffects(ctx context.Context, n int) error {
	err := s.way.checkEffects(ctx, n)
	if err == nil {
		var left int
		if left, err = s.queue.QueueDepth(); left > 0 {
			err = fmt.Errorf("%d messages were not acked", left)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// sizeNextSlice sets the number of messages that keep a subject of that rate busy for a slice.
func (s *subject) sizeNextSlice(rate float64, slice time.Duration) {
	s.backlog = min(max(int(rate*slice.Seconds()), minBacklog), maxBacklog)
}
