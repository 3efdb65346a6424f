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
	"time"
)

// jobVariable holds a job as JSON in the environment of a worker.
const jobVariable = "SAGAMILL_BENCH_SCALE_JOB"

const stopTimeout = 20 * time.Second

// A job is the task of one worker.
type job struct {
	Role     string   // consume, relay or serve
	Database string   // URL
	Broker   string   // URL
	Schemas  []string // of the services; the consumer and the relay have one
	Topics   []string // in the order of the steps; the consumer and the relay have one
	Lanes    int      // 0: the default
	Start    int      // sagas that this worker starts
	Clients  int      // clients that start them
}

// A report is one line that a worker writes.
type report struct {
	Ready bool
	Done  int // messages since the last report
	Trips int // round trips to the database; in the last report
}

// A worker is a process of this program. It ends when its standard input does, and so at the latest with this
// process.
type worker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ready chan struct{}
	trips int
	life  context.Context // ends with the worker's output
	end   context.CancelFunc
}

// startWorker starts a worker, which reports the messages that it has done.
func startWorker(ctx context.Context, j job, told chan<- int) (*worker, error) {
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
	go w.listenReports(ctx, reports, told) // ends with the process
	return w, nil
}

func (w *worker) listenReports(ctx context.Context, reports io.Reader, told chan<- int) {
	defer w.end()
	lines := bufio.NewScanner(reports)
	for lines.Scan() {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		if r.Ready {
			close(w.ready)
		}
		w.trips += r.Trips
		if r.Done == 0 {
			continue
		}
		select {
		case told <- r.Done:
		case <-ctx.Done():
		}
	}
}

func (w *worker) awaitReady(ctx context.Context) error {
	select {
	case <-w.ready:
		return nil
	case <-w.life.Done():
		return errors.New("a worker has ended before it was ready")
	case <-ctx.Done():
		return fmt.Errorf("a worker is not ready: %w", ctx.Err())
	}
}

// beginWork makes the worker begin.
func (w *worker) beginWork() error {
	_, err := w.stdin.Write([]byte("go\n"))
	return err
}

// stopWorker ends the worker and returns how many round trips it has made.
func (w *worker) stopWorker() (trips int, err error) {
	_ = w.stdin.Close()
	late := time.AfterFunc(stopTimeout, func() { _ = w.cmd.Process.Kill() })
	defer late.Stop()
	<-w.life.Done() // Wait would close the unread output
	if err := w.cmd.Wait(); err != nil {
		return 0, fmt.Errorf("worker: %w", err)
	}
	return w.trips, nil
}
