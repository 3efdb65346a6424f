package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sagamill/sagamill/bench/internal/proctime"
)

const sliceTimeout = time.Minute

// An outcome is the measurement of one or more slices.
type outcome struct {
	messages int // counted
	all      int // with those of the warm-up, which trips and seen have too
	took     time.Duration
	used     proctime.Usage
	busy     time.Duration // of all processors of the machine, by all programs
	trips    int           // round trips of the workers to the database
	seen     activity
}

func (o outcome) messageRate() float64 { return float64(o.messages) / o.took.Seconds() }

// messageCost returns the processor time of all parties for one message, in microseconds.
func (o outcome) messageCost() float64 {
	return float64((o.used.Client + o.used.Database + o.used.Broker).Microseconds()) / float64(o.messages)
}

func (o outcome) addOutcome(p outcome) outcome {
	return outcome{o.messages + p.messages, o.all + p.all, o.took + p.took, o.used.AddUsage(p.used), o.busy + p.busy, o.trips + p.trips, o.seen.addActivity(p.seen)}
}

// measureSlices makes count workers, lanes or outboxes of t work off n messages, and checks the effects. The first of the
// messages warm the workers up.
func (b *bench) measureSlices(ctx context.Context, t *trial, p *place, n, count int) (o outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, sliceTimeout)
	defer cancel()
	n -= n % counts[len(counts)-1] // shares are equal
	if err = t.prepare(ctx, p, n, count); err == nil {
		_, err = p.all.Exec(ctx, "CHECKPOINT") // otherwise one may fall into the slice
	}
	if err != nil {
		return o, fmt.Errorf("prepare: %w", err)
	}
	before, err := p.readActivity(ctx)
	if err != nil {
		return o, err
	}
	if o, err = runJobs(ctx, t.jobs(p, n, count), int(float64(n)*t.warm), n); err != nil {
		return o, err
	}
	after, err := p.readActivity(ctx) // the workers have ended, and so have their sessions
	o.seen = after.subtractActivity(before)
	return o, errors.Join(err, t.check(ctx, p, n, count))
}

// runJobs runs a worker for each job until they have reported n messages. The first warm ones are not counted.
func runJobs(ctx context.Context, jobs []job, warm, n int) (o outcome, err error) {
	told := make(chan int, 16)
	var crew []*worker
	defer func() {
		for _, w := range crew {
			_ = w.stdin.Close() // they end side by side
		}
		for _, w := range crew {
			trips, fault := w.stopWorker()
			o.trips, err = o.trips+trips, errors.Join(err, fault)
		}
	}()
	for _, j := range jobs {
		w, err := startWorker(ctx, j, told)
		if err != nil {
			return o, err
		}
		crew = append(crew, w)
	}
	for _, w := range crew {
		if err := w.awaitReady(ctx); err != nil {
			return o, err
		}
	}
	for _, w := range crew {
		if err := w.beginWork(); err != nil {
			return o, err
		}
	}
	done, err := awaitMessages(ctx, told, crew, warm)
	if err != nil {
		return o, err
	}
	used, busy, begun := proctime.ReadUsage(), machineBusy(), time.Now()
	if _, err := awaitMessages(ctx, told, crew, n-done); err != nil {
		return o, err
	}
	o = outcome{messages: n - done, all: n, took: time.Since(begun)}
	o.busy, o.used = machineBusy()-busy, proctime.ReadUsage().UsedSince(used)
	return o, nil
}

// awaitMessages returns when the workers have reported n messages, and how many they have reported.
func awaitMessages(ctx context.Context, told <-chan int, crew []*worker, n int) (done int, err error) {
	ended := make(chan struct{}, len(crew))
	for _, w := range crew {
		context.AfterFunc(w.life, func() { ended <- struct{}{} })
	}
	for done < n {
		select {
		case more := <-told:
			done += more
		case <-ended:
			return done, fmt.Errorf("a worker has ended after %d of %d messages", done, n)
		case <-ctx.Done():
			return done, fmt.Errorf("%d of %d messages are done: %w", done, n, ctx.Err())
		}
	}
	return done, nil
}
