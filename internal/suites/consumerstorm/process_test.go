package consumerstorm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	processEnv    = "SAGAMILL_TEST_STORM_CONSUMER"
	failpointsEnv = "SAGAMILL_FAILPOINTS"
	service       = "storm"
	topic         = "work" // of all messages: one queue

	processConns = 3 // of each of its two pools: other packages are at the same server, which has 100
	parkedPoll   = 20 * time.Millisecond
	maxSaid      = 4000 // bytes of a process's output in a failure
)

// A processConfig is the configuration of a consumer process, in its environment.
type processConfig struct {
	Name, DatabaseURL, AMQPURL, Prefix, Schema string
	Batch, Lanes, Prefetch, Limit              int
}

// A work is a message's payload: what its handler does.
type work struct {
	End  string `json:"end,omitempty"`  // "fail", "panic", "terminal" or "kill"; "flaky" fails the first time
	Wait int    `json:"wait,omitempty"` // milliseconds before that
}

// TestMain runs a consumer instead of the tests if the environment asks for it.
func TestMain(m *testing.M) {
	if text := os.Getenv(processEnv); text != "" {
		if err := serveConsumer(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// announced is closed once this process has said that it is ready: no message kills it before.
var announced = make(chan struct{})

// serveConsumer is the main of a consumer process. It says when it is ready, and
// a SIGTERM ends it in good order.
func serveConsumer(text string) error {
	var config processConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, sub, err := newConsumer(ctx, config)
	if err != nil {
		return err
	}
	go func() { // ends with the process
		for !c.Ready() && os.Getenv(failpointsEnv) == "" { // one that is armed may be dead before it could say so
			_ = backoff.Sleep(ctx, time.Millisecond)
		}
		fmt.Println("ready")
		close(announced)
	}()
	return errors.Join(c.Run(ctx), sub.Close())
}

func newConsumer(ctx context.Context, config processConfig) (*consumer.Consumer, *rabbitmq.Subscriber, error) {
	pool, err := newPool(ctx, config.DatabaseURL)
	if err != nil {
		return nil, nil, err
	}
	own, err := newPool(ctx, os.Getenv("SAGAMILL_TEST_LEDGER")) // no fault strikes the ledger
	if err != nil {
		return nil, nil, err
	}
	topology, err := rabbitmq.NewConfig(config.AMQPURL, service, &rabbitmq.ConfigOptions{Prefix: config.Prefix})
	if err != nil {
		return nil, nil, err
	}
	sub, err := rabbitmq.NewSubscriber(topology, &rabbitmq.SubscriberOptions{Prefetch: config.Prefetch, NackDelay: 20 * time.Millisecond})
	if err != nil {
		return nil, nil, err
	}
	steps := newSteps(NewLedger(own, config.Schema), config.Limit)
	c, err := consumer.New(pool, sub, steps, &consumer.Options{
		Schema: config.Schema, BatchSize: config.Batch, Lanes: cmp.Or(config.Lanes, 4), ParkedWorkers: 3, ParkedPoll: parkedPoll,
	})
	return c, sub, err
}

func newPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = processConns
	return pgxpool.NewWithConfig(ctx, config)
}

// newSteps returns a step whose messages are in no order, and one that is
// Ordered.
func newSteps(ledger *Ledger, limit int) (steps []consumer.Step) {
	for _, name := range []string{"pay", "ship"} {
		step := consumer.Step{
			Name: name, Action: consumer.On(topic, handler(ledger)), Compensation: consumer.On(topic, handler(ledger)),
			MaxAttempts: limit, RetryBase: time.Millisecond, RetryCap: 10 * time.Millisecond, Timeout: 10 * time.Second, Ordered: name == "ship",
		}
		step.Action.Type, step.Compensation.Type = Action+"-"+name, Compensation+"-"+name
		steps = append(steps, step)
	}
	return steps
}

func handler(ledger *Ledger) consumer.Handler[work] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[work], _ consumer.Emit) error {
		m := Message{ID: in.ID, Key: in.Key + in.N, Kind: Action, Payload: in.Payload}
		if in.Undo {
			m.Kind = Compensation
		}
		if err := ledger.Enter(ctx, m); err != nil {
			return err
		}
		if err := ledger.Effect(ctx, tx, m); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", float64(in.Body.Wait)/1000); err != nil {
			return err
		}
		return in.Body.end(in.Attempt)
	}
}

func (w work) end(attempt int) error {
	switch {
	case w.End == "fail", w.End == "flaky" && attempt == 1:
		return errors.New("not now")
	case w.End == "panic":
		panic("a handler's panic")
	case w.End == "terminal":
		return consumer.Terminal(errors.New("never"))
	case w.End == "kill":
		<-announced
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
	return nil
}

// A process is a consumer process, seen from the test.
type process struct {
	*proctest.Process
	name string
	log  string // file with what it said

	armed bool // it is meant to die at a point
}

// start starts a process that is armed with failpoints, if any.
func start(t *testing.T, dir string, config processConfig, failpoints string) *process {
	t.Helper()
	p := &process{name: config.Name, log: filepath.Join(dir, config.Name+".log")}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processEnv+"="+string(text), failpointsEnv+"="+failpoints,
		"SAGAMILL_TEST_LEDGER="+ledgerURL(), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = log
	if p.Process, err = proctest.Start(cmd); err != nil {
		t.Fatalf("start consumer: %v\n%s", err, p.said())
	}
	t.Cleanup(p.Kill)
	return p
}

// said returns the end of what the process has written to its standard error.
func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(string(text[max(0, len(text)-maxSaid):]), "")
}

// raced reports whether the race detector has found something.
func (p *process) raced() bool {
	text, err := os.ReadFile(p.log)
	return err == nil && strings.Contains(string(text), "DATA RACE")
}
