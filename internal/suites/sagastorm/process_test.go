package sagastorm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/saga"
)

const (
	processEnv  = "SAGAMILL_TEST_STORM_SAGA"
	processPool = 5    // connections: other packages are at the same server, which has 100
	maxSaid     = 4000 // bytes of a process's output in a failure
)

// The roles of processes, and the services whose queues they share.
const (
	orchestrator = "orchestrator"
	participant  = "participant"
)

// A processConfig is the configuration of a process, in its environment.
type processConfig struct{ Role, Database, AMQP, Prefix, Schema string }

// TestMain runs a process instead of the tests if the environment asks for it.
func TestMain(m *testing.M) {
	if text := os.Getenv(processEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve is the main of a process. A SIGTERM ends it in good order.
func serve(text string) error {
	var config processConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready")
	pool, err := pgxpool.ParseConfig(config.Database)
	if err != nil {
		return err
	}
	pool.MaxConns = processPool
	db, err := pgxpool.NewWithConfig(ctx, pool)
	if err != nil {
		return err
	}
	sub, err := rabbitmq.NewSubscriber(topologyOf(config.AMQP, config.Prefix, config.Role), &rabbitmq.SubscriberOptions{Prefetch: 32, NackDelay: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	run, err := newRun(db, sub, config)
	if err != nil {
		return err
	}
	err = run(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // it had not begun
	}
	return errors.Join(err, sub.Close())
}

func newRun(db *pgxpool.Pool, sub *rabbitmq.Subscriber, config processConfig) (func(context.Context) error, error) {
	opts := consumer.Options{Lanes: 4, ParkedWorkers: 3, ParkedPoll: 20 * time.Millisecond}
	if config.Role == participant {
		opts.Schema = config.Schema
		c, err := consumer.New(db, sub, steps(config.Schema), &opts)
		if err != nil {
			return nil, err
		}
		return c.Run, nil
	}
	var plans []saga.Plan
	for _, k := range kinds(config.Schema) {
		plans = append(plans, k.plan)
	}
	o, err := saga.NewOrchestrator(db, sub, plans, &saga.Options{
		Schema: config.Schema, TimerPoll: 10 * time.Millisecond, HousekeepPoll: 100 * time.Millisecond, Consumer: opts,
	})
	if err != nil {
		return nil, err
	}
	return o.Run, nil
}

func topologyOf(url, prefix, service string) wamqp.Config {
	config, err := rabbitmq.NewConfig(url, service, &rabbitmq.ConfigOptions{Prefix: prefix})
	if err != nil {
		panic(err)
	}
	return config
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A process is one of the storm's, seen from the test.
type process struct {
	*proctest.Process
	role  string
	log   string // file with what it said
	armed bool   // it is meant to die at a point
}

// add starts a process, armed with failpoints or not.
func (s *storm) add(role, failpoints string) {
	s.Helper()
	config := s.config
	config.Role = role
	if role == participant {
		config.Database = s.direct
	}
	p := &process{role: role, log: filepath.Join(s.TempDir(), "log"), armed: failpoints != ""}
	text, err := json.Marshal(config)
	if err != nil {
		s.Fatal(err)
	}
	log, err := os.Create(p.log)
	if err != nil {
		s.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processEnv+"="+string(text), "SAGAMILL_FAILPOINTS="+failpoints, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = log
	if p.Process, err = proctest.Start(cmd); err != nil {
		s.Fatalf("start %s: %v\n%s", role, err, p.said())
	}
	s.Cleanup(p.Kill)
	s.processes, s.started = append(s.processes, p), append(s.started, p)
}

// replace starts a process for each that is dead.
func (s *storm) replace() {
	s.Helper()
	for _, p := range slices.Clone(s.processes) {
		if !p.Dead() {
			continue
		}
		s.deaths++
		s.forget(p)
		s.add(p.role, "")
	}
}

func (s *storm) forget(p *process) {
	s.processes = slices.DeleteFunc(s.processes, func(other *process) bool { return other == p })
}

// retire lets all end in good order, and fails the test if one does not.
func (s *storm) retire() {
	s.Helper()
	for _, p := range s.processes {
		p.Terminate()
	}
	for _, p := range s.processes {
		if code := p.Wait(stopLimit); code != 0 && !p.armed {
			s.Errorf("%s ended with %d within %s:\n%s", p.role, code, stopLimit, p.said())
		}
	}
	s.processes = nil
}

// one returns a process of a role.
func (s *storm) one(role string) *process {
	s.Helper()
	var some []*process
	for _, p := range s.processes {
		if p.role == role && !p.Dead() {
			some = append(some, p)
		}
	}
	if len(some) == 0 {
		s.replace()
		return s.one(role)
	}
	return some[s.rng.IntN(len(some))]
}

// said returns the end of what the process has written to its standard error.
func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(string(text[max(0, len(text)-maxSaid):]), "")
}
