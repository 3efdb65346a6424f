package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/cluster/fault"
	"github.com/sagamill/sagamill/chaos/internal/cluster/meter"
	"github.com/sagamill/sagamill/internal/backoff"
)

// The waits around a fault.
const (
	sampleEvery     = 200 * time.Millisecond
	calmPatience    = 2 * time.Minute // until the services work normally, before a fault
	recoverPatience = 2 * time.Minute // until they do so after it
)

// A Row is the cost of one fault.
type Row struct {
	Stage, Fault string
	OfRed        bool // it concerns topic red alone
	OfIdle       bool // it strikes a node that leads no queue
	Note         string
	meter.Figures
}

// errStuck reports services that do not work normally any more.
var errStuck = errors.New("the services do not come to rest")

// strikeOne carries out one fault and measures it. The error is errStuck if the services do not come to rest
// even without a load; otherwise it is a failure of the harness.
func (r *shift) strikeOne(ctx context.Context, f *fault.Fault) (*Row, error) {
	if f.Prepare != nil {
		if err := f.Prepare(r.scene); err != nil {
			return nil, fmt.Errorf("prepare %s: %w", f.Name, err)
		}
	}
	normal, err := r.awaitNormal(ctx)
	if err != nil {
		return nil, fmt.Errorf("before %s: %w", f.Name, err)
	}
	w := meter.Window{Struck: time.Now()}
	if err := r.carryOut(ctx, f); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	w.Ended = time.Now()
	stuck := r.awaitCondition(ctx, recoverPatience, func() bool {
		w.Recovered = r.meter.Recovered(w.Ended, normal)
		return !w.Recovered.IsZero()
	})
	if err := backoff.Sleep(ctx, time.Until(w.Struck.Add(meter.Shortest))); err != nil {
		return nil, err
	}
	w.Over = time.Now()
	row := &Row{Stage: r.stage.String(), Fault: f.Name, OfRed: f.StopsRedQueues(), OfIdle: f.HitsIdleNode(), Figures: r.meter.WindowFigures(w)}
	if errors.Is(stuck, errStuck) {
		stuck = r.pauseLoad(ctx)
	}
	err = errors.Join(stuck, r.scene.AwaitSettled())
	row.Note = r.scene.JoinedNotes()
	return row, err
}

// pauseLoad pauses the load until all work is done: on a busy machine services may catch up only without a
// load.
func (r *shift) pauseLoad(ctx context.Context) error {
	r.printLine("%s: the load pauses", r.stage)
	r.shop.PauseWriting(true)
	defer r.shop.PauseWriting(false)
	return r.awaitCondition(ctx, drainPatience, func() bool { return r.meter.PendingOrders() == 0 })
}

// carryOut begins the fault, holds it, and ends it.
func (r *shift) carryOut(ctx context.Context, f *fault.Fault) error {
	if err := f.Strike(r.scene); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, f.Hold); err != nil || f.End == nil {
		return err
	}
	return f.End(r.scene)
}

// awaitNormal waits until the services have worked normally for some seconds, and returns their normal state.
// If that takes long, the load pauses once.
func (r *shift) awaitNormal(ctx context.Context) (meter.Normal, error) {
	err := r.awaitCalm(ctx)
	if errors.Is(err, errStuck) {
		if err = r.pauseLoad(ctx); err == nil {
			err = r.awaitCalm(ctx)
		}
	}
	if err != nil {
		return meter.Normal{}, err
	}
	calm := time.Now()
	if err := backoff.Sleep(ctx, meter.Before); err != nil {
		return meter.Normal{}, err
	}
	return r.meter.NormalRates(calm, r.opts.Rate, r.opts.messages()), nil
}

// awaitCalm waits until the services have nothing but the load under way.
func (r *shift) awaitCalm(ctx context.Context) error {
	from := time.Now()
	loose := r.meter.NormalRates(from, r.opts.Rate, r.opts.messages()) // no sample yet: the room that all have
	loose.Open += r.opts.Rate
	return r.awaitCondition(ctx, calmPatience, func() bool { return !r.meter.Recovered(from, loose).IsZero() })
}

// awaitCondition looks until done, or until a limit of time: then its error is errStuck.
func (r *shift) awaitCondition(ctx context.Context, limit time.Duration, done func() bool) error {
	for end := time.Now().Add(limit); ; {
		if done() {
			return nil
		}
		if err := errors.Join(r.shop.FirstFailure(), r.firstFailure()); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w within %s", errStuck, limit)
		}
		if err := backoff.Sleep(ctx, sampleEvery); err != nil {
			return err
		}
	}
}
