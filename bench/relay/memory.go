package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	memoryJob   = "SAGAMILL_BENCH_RELAY_JOB" // has a relayJob as JSON in the environment of a child process
	memoryPause = 12 * time.Second           // in which the broker does not answer, so that the window is full
	memoryLimit = 3 * time.Minute            // of one child process
	memoryGoal  = 2*64 + 64                  // MiB: twice the default of WindowBytes, and 64
	mebibyte    = 1 << 20
)

// A memoryRun is a backlog of messages of one size.
type memoryRun struct {
	name     string
	payload  int
	messages int
	window   int // messages; 0: the default
}

var memoryRuns = []memoryRun{
	{"1kb", 1000, 100_000, 0},
	{"1kb-largest-window", 1000, 150_000, 100_000},
	{"1mb", 1_000_000, 600, 0},
}

// A relayJob is the task of a child process: to run a relay until it has published everything.
type relayJob struct {
	Database, Broker, Schema, Topic string
	Messages, Window                int
}

// A relayReport is what the child process tells at its end.
type relayReport struct {
	Peak int64   // bytes of memory that were resident at most
	Idle int64   // before the relay has read anything
	Rate float64 // messages a second, once the broker answers
}

// measureMemory measures how much memory the process of a relay takes that has a backlog to publish, to a broker that
// does not answer at first.
func (b *bench) measureMemory(ctx context.Context) ([]target.Target, error) {
	if _, err := residentPeak(); err != nil {
		fmt.Println("memory NOT MEASURED:", err)
		return nil, nil
	}
	var targets []target.Target
	for _, run := range memoryRuns {
		report, err := b.runMemory(ctx, run)
		if err != nil {
			return nil, fmt.Errorf("payloads of %s: %w", run.name, err)
		}
		fmt.Printf("memory %-18s %d MiB at most, %d MiB before the first read; %.0f messages a second\n",
			run.name, report.Peak/mebibyte, report.Idle/mebibyte, report.Rate)
		targets = append(targets, target.Target{
			Name: "memory-" + run.name + "-MiB", Value: float64(report.Peak) / mebibyte, Goal: memoryGoal, AtMost: true,
		})
	}
	return targets, nil
}

// runMemory stores the messages and lets a child process publish them.
func (b *bench) runMemory(ctx context.Context, run memoryRun) (report relayReport, err error) {
	sub, o, err := b.openOwnSubject(ctx, b.servers[0], "ours-log", "memory-"+run.name)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, o.queue.PurgeQueue(), sub.closeSubject()) }()
	body := bytes.Repeat([]byte("x"), run.payload)
	size := max(1, min(100, 8*mebibyte/run.payload))
	for stored := 0; stored < run.messages; stored += size {
		err := pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
			messages := make([]outbox.Message, min(size, run.messages-stored))
			for i := range messages {
				messages[i] = o.outboxMessage(fmt.Sprintf("order-%d", order.Add(1)))
				messages[i].Payload = body
			}
			return o.writer.Write(ctx, tx, messages...)
		})
		if err != nil {
			return report, err
		}
	}
	return runChild(ctx, relayJob{
		Database: o.server.URL, Broker: b.broker.URL, Schema: o.schema, Topic: o.queue.Topic,
		Messages: run.messages, Window: run.window,
	})
}

// runChild does a job in a process of this program.
func runChild(ctx context.Context, j relayJob) (report relayReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, memoryLimit)
	defer cancel()
	text, err := json.Marshal(j)
	if err != nil {
		return report, err
	}
	self, err := os.Executable()
	if err != nil {
		return report, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env, cmd.Stderr = append(os.Environ(), memoryJob+"="+string(text)), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return report, fmt.Errorf("child process: %w", err)
	}
	return report, json.Unmarshal(out, &report)
}

// doJob runs a relay as a child process, and writes the report.
func doJob(ctx context.Context, text string) error {
	var j relayJob
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	pool, err := pgxpool.New(ctx, j.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	cfg, err := rabbitmq.NewConfig(j.Broker, private.QueueService, nil)
	if err != nil {
		return err
	}
	publisher, err := rabbitmq.NewPublisher(cfg, nil)
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	c := newCounter(j.Messages)
	g := newGate(counted{publisher, c}, j.Topic)
	r, err := outbox.NewRelay(pool, g, &outbox.RelayOptions{Schema: j.Schema, Window: j.Window})
	if err != nil {
		return err
	}
	var report relayReport
	if report.Idle, err = residentPeak(); err != nil {
		return err
	}
	work, stop := context.WithTimeout(ctx, memoryLimit)
	defer stop()
	fault := make(chan error, 1)
	go func() { fault <- r.Run(work) }()
	if err := backoff.Sleep(work, memoryPause); err != nil {
		return err
	}
	g.open()
	opened := time.Now()
	err = c.waitUntilAll(work)
	report.Rate = float64(j.Messages) / time.Since(opened).Seconds()
	stop()
	if err = errors.Join(err, <-fault); err != nil {
		return err
	}
	if report.Peak, err = residentPeak(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// residentPeak returns how many bytes of memory this process has had resident at most.
func residentPeak() (int64, error) {
	content, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(content) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kilobytes, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, errors.New("no VmHWM in /proc/self/status")
}
