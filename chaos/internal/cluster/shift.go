package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/cluster/audit"
	"github.com/sagamill/sagamill/chaos/internal/cluster/fault"
	"github.com/sagamill/sagamill/chaos/internal/cluster/meter"
	"github.com/sagamill/sagamill/chaos/internal/cluster/shop"
	"github.com/sagamill/sagamill/internal/backoff"
)

// drainPatience limits the wait until a shop has finished all work.
const drainPatience = 5 * time.Minute

// A shift is one stage while it runs.
type shift struct {
	*run
	stage *stage
	shop  *shop.Shop
	meter *meter.Meter
	scene *fault.Scene

	working sync.WaitGroup
	mu      sync.Mutex
	failed  error // of the load or the sampler
}

// An Outcome is the result of a stage.
type Outcome struct {
	Stage      string
	Rows       []Row
	Written    int
	Completed  int
	Rate       float64 // orders written in a second
	Redelivers int
	Dead       int      // dead letters of outbox and inbox, and messages in dead-letter queues
	Left       []string // unfinished work
	Stuck      string   // why some faults did not strike; empty: all did
	audit.Findings
}

// runStage runs a stage, from opening its shop to the audit. An error comes with the outcome so far.
func (r *shift) runStage(ctx context.Context, logger *slog.Logger) (*Outcome, error) {
	o := &Outcome{Stage: r.stage.String()}
	if err := r.openShop(ctx, logger); err != nil {
		return o, err
	}
	began := time.Now()
	err := r.strikeAll(ctx, o)
	o.Written, o.Completed = r.meter.OrderCounts()
	o.Rate = float64(o.Written) / time.Since(began).Seconds()
	if err == nil {
		err = r.drainShop(ctx, o)
	}
	if err = errors.Join(err, r.shop.CloseShop()); err != nil {
		return o, err
	}
	return o, r.auditShop(ctx, o)
}

// openShop starts the shop of the stage.
func (r *shift) openShop(ctx context.Context, logger *slog.Logger) (err error) {
	brokers, instances := r.cluster.URLs(), 1
	opts := shop.Options{
		DB: r.db, DatabaseURL: r.postgres.URL(), Schema: r.stageName("_"), Prefix: r.stageName("-") + "-", Meter: r.meter, Logger: logger,
		Rate: r.opts.Rate, Colours: r.opts.Colours, Keys: r.opts.Keys, Seed: r.opts.Seed,
		SingleActive: r.stage.kind == ordered, Classic: r.stage.kind == classic,
	}
	switch r.stage.kind {
	case ordered:
		instances = 2 // one is active, the other one stands by
	case secure:
		opts.TLS, brokers = r.certificate.clientConfig(), nil
		for _, n := range r.cluster.Nodes() {
			brokers = append(brokers, n.TLSURL())
		}
	}
	opts.Brokers, opts.Instances = brokers, instances
	if r.shop, err = shop.OpenShop(ctx, opts); err != nil {
		return err
	}
	r.scene = &fault.Scene{
		Cluster: r.cluster, Queues: r.shop.QueueNames(), Red: r.shop.QueueName(shop.Red),
		Classic: opts.Classic, Heals: r.healsPartitions(),
	}
	return nil
}

// strikeAll carries out the faults while orders are written.
func (r *shift) strikeAll(ctx context.Context, o *Outcome) error {
	ctx, stop := context.WithCancel(ctx)
	defer r.working.Wait()
	defer stop()
	r.working.Go(func() { r.recordFailure(r.shop.WriteOrders(ctx)) })
	r.working.Go(func() { r.recordFailure(r.takeSamples(ctx)) })
	random := rand.New(rand.NewPCG(r.opts.Seed, uint64(r.number)))
	for round := 0; ; round++ {
		faults := slices.Clone(r.stage.faults)
		if round > 0 {
			faults = slices.Clone(r.stage.later)
		}
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for i := range faults {
			if written, _ := r.meter.OrderCounts(); round > 0 && written >= r.stage.orders {
				return nil
			}
			row, err := r.strikeOne(ctx, &faults[i])
			if row != nil {
				o.Rows = append(o.Rows, *row)
				r.printLine("%s", row)
			}
			if errors.Is(err, errStuck) {
				o.Stuck = err.Error()
				r.printLine("%s: %v", r.stage, err)
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
}

// sampleColumns are the columns of the file of samples, which helps to explain a figure.
const sampleColumns = "time\tstored\theld\tdead\twritten\tcompleted\tpublished\tqueued\tdeferred\tstalled\tunavailable"

// takeSamples samples the shop until ctx ends, and keeps the samples in a file.
func (r *shift) takeSamples(ctx context.Context) error {
	file, err := os.Create(r.fileName(".tsv"))
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	defer out.Flush()
	fmt.Fprintln(out, sampleColumns)
	for {
		s, err := r.shop.TakeSample(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		s.At = time.Now()
		s = r.meter.AddSample(s)
		c := &s.Relay
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", s.At.UTC().Format("15:04:05.000"), s.Stored, s.Held, s.Dead, s.Written, s.Done,
			c.Published, c.Queued, c.Deferred, c.Stalled, c.Unavailable)
		if backoff.Sleep(ctx, sampleEvery) != nil {
			return nil
		}
	}
}

// fileName returns the path of a file of the stage.
func (r *shift) fileName(extension string) string {
	return filepath.Join(r.opts.Dir, strings.ReplaceAll(r.stage.String(), "/", "-")+extension)
}

func (r *shift) recordFailure(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = errors.Join(r.failed, err)
}

func (r *shift) firstFailure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// drainShop waits until the shop has finished all work, and records unfinished work.
func (r *shift) drainShop(ctx context.Context, o *Outcome) error {
	if err := r.firstFailure(); err != nil {
		return err
	}
	var last meter.Sample
	ready := 0
	err := r.awaitCondition(ctx, drainPatience, func() bool {
		s, err := r.shop.TakeSample(ctx)
		if err != nil {
			r.recordFailure(err)
			return false
		}
		last = s
		ready, err = r.queueDepths(r.shop.QueueNames())
		return s.Stored+s.Held+r.meter.PendingOrders() == 0 && err == nil && ready == 0
	})
	o.Dead = last.Dead
	if errors.Is(err, errStuck) {
		o.Left = append(o.Left, fmt.Sprintf("%d messages stored and %d held in the outbox, %d ready in queues, %d sagas not completed",
			last.Stored, last.Held, ready, r.meter.PendingOrders()))
		err = nil
	}
	o.Written, o.Completed = r.meter.OrderCounts()
	return err
}

// auditShop compares effects with causes, counts the messages in the queues, and deletes the queues.
func (r *shift) auditShop(ctx context.Context, o *Outcome) (err error) {
	o.Redelivers = r.meter.Redelivered()
	var inOrder []string
	if r.stage.kind == ordered {
		inOrder = []string{shop.ScopeOrder}
	}
	if o.Findings, err = audit.CheckSchema(ctx, r.db, r.stageName("_"), shop.StepsByService(), inOrder...); err != nil {
		return err
	}
	ready, err := r.queueDepths(r.shop.QueueNames())
	if err != nil {
		return err
	}
	if ready > 0 {
		o.Left = append(o.Left, fmt.Sprintf("%d messages in queues", ready))
	}
	var dead []string
	for _, topic := range shop.Topics {
		dead = append(dead, r.shop.DeadQueue(topic))
	}
	buried, err := r.queueDepths(dead)
	o.Dead += buried
	if err != nil {
		return err
	}
	return r.deleteQueues(append(dead, r.shop.QueueNames()...))
}
