package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sagamill/sagamill"
	"github.com/sagamill/sagamill/saga"
)

// jobVariable holds a job as JSON in the environment of a worker.
const jobVariable = "SAGAMILL_BENCH_CONSOLE_JOB"

const (
	inflight    = 64 // sagas at full rate
	starters    = 8
	tick        = 5 * time.Millisecond
	stopTimeout = 20 * time.Second
)

// A job says which servers the service uses. Holder is the process that has started them.
type job struct {
	Database, Broker string
	Holder           int
}

// A report is one line that a worker writes.
type report struct {
	Ready bool
	Done  uint64 // sagas that have completed so far
}

// serveJob runs the service until standard input ends. Each line there sets the load: sagas to start in a second, 0 for
// none, or -1 for as many as it can with inflight of them at once.
func serveJob(ctx context.Context, text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	shop, starter, err := newShop(j.Database, j.Broker)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var rate atomic.Int64
	go func() { // ends with standard input, which ends with our parent
		defer cancel()
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			if n, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64); err == nil {
				rate.Store(n)
			}
		}
	}()
	var parts sync.WaitGroup
	faults := make([]error, 2)
	parts.Go(func() {
		defer cancel()
		faults[0] = shop.Run(ctx)
	})
	parts.Go(func() {
		defer cancel()
		faults[1] = startSagas(ctx, shop, starter, &rate)
	})
	parts.Wait()
	return errors.Join(faults...)
}

// startSagas starts sagas at the rate, and reports how many have completed.
func startSagas(ctx context.Context, shop *sagamill.Service, starter *saga.Starter[order], rate *atomic.Int64) error {
	var (
		clients sync.WaitGroup
		orders  = make(chan order, inflight)
		faults  = make([]error, starters)
		lines   = json.NewEncoder(os.Stdout)
		started = int64(0)
		credit  = 0.0
	)
	ctx, cancel := context.WithCancel(ctx)
	defer clients.Wait()
	defer cancel()
	for i := range faults {
		clients.Go(func() {
			for o := range orders {
				if faults[i] = startOrder(ctx, shop, starter, o); faults[i] != nil {
					cancel()
					return
				}
			}
		})
	}
	defer close(orders)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for ready, last := false, time.Now(); ; {
		select {
		case <-ctx.Done():
			return errors.Join(faults...)
		case <-ticker.C:
		}
		if !ready && shop.CheckReady(ctx) == nil {
			ready = true
			_ = lines.Encode(report{Ready: true}) // without a reader, standard input ends too
		}
		done := shop.Orchestrator().Counters().Completed
		room := int64(inflight) - (started - int64(done))
		if n := rate.Load(); n >= 0 {
			credit = min(credit+float64(n)*time.Since(last).Seconds(), inflight)
			room = min(room, int64(credit))
		}
		last = time.Now()
		for range max(0, room) {
			select {
			case orders <- newOrder(courseDone):
				started++
				credit--
			case <-ctx.Done():
			}
		}
		_ = lines.Encode(report{Done: done})
	}
}

// A worker is the process of the service.
type worker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ready chan struct{}
	done  atomic.Uint64
	life  context.Context // ends with the worker's output
	end   context.CancelFunc
}

func startWorker(ctx context.Context, j job) (*worker, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.CommandContext(ctx, self), ready: make(chan struct{})}
	w.cmd.Env, w.cmd.Stderr = append(os.Environ(), jobVariable+"="+string(text)), os.Stderr
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	reports, err := w.cmd.StdoutPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w.life, w.end = context.WithCancel(context.Background())
	go w.listen(reports) // ends with the process
	select {
	case <-w.ready:
		return w, nil
	case <-w.life.Done():
		err = errors.New("the worker has ended before it was ready")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, w.stop())
}

func (w *worker) listen(reports io.Reader) {
	defer w.end()
	lines := bufio.NewScanner(reports)
	for lines.Scan() {
		var r report
		switch {
		case json.Unmarshal(lines.Bytes(), &r) != nil:
		case r.Ready:
			close(w.ready)
		default:
			w.done.Store(r.Done)
		}
	}
}

// load sets the load.
func (w *worker) load(rate int) error {
	_, err := fmt.Fprintln(w.stdin, rate)
	return err
}

// stop ends the worker.
func (w *worker) stop() error {
	_ = w.stdin.Close()
	late := time.AfterFunc(stopTimeout, func() { _ = w.cmd.Process.Kill() })
	defer late.Stop()
	<-w.life.Done()
	return w.cmd.Wait()
}
