//go:build failpoints

package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/pgtest"
	"github.com/sagamill/sagamill/internal/proctest"
	"github.com/sagamill/sagamill/saga"
)

const (
	childEnv   = "SAGAMILL_TEST_SAGA_CHILD"
	childLimit = 30 * time.Second // until it dies, stops or ends
)

// A childConfig is what a process of its own is told.
type childConfig struct {
	Database, AMQP, Schema, Prefix string
	Start                          string // key of a trip to be started; "": orchestrate
	Patience                       time.Duration
}

// TestMain is an orchestrator, or a caller of Start, when it is told to be one.
func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(text string) error {
	var config childConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready") // its death may come with the first delivery
	if config.Start != "" {
		return startTrip(ctx, config)
	}
	opts := saga.Options{Patience: config.Patience, HousekeepPoll: 50 * time.Millisecond, Logger: slog.Default()}
	_, run, err := newOrchestrator(ctx, config.Database, topologyOf(config.AMQP, config.Prefix, orchestrators), config.Schema, opts)
	if err != nil {
		return err
	}
	return run(ctx)
}

// startTrip starts an instance as a service does, which may die around its COMMIT.
func startTrip(ctx context.Context, config childConfig) error {
	conn, err := pgx.Connect(ctx, config.Database)
	if err != nil {
		return err
	}
	s, err := saga.NewStarter(crashTrip(config.Schema), &saga.StarterOptions{Schema: config.Schema})
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := s.Start(ctx, tx, "tenant", config.Start, trip{Item: "x"})
		return errors.Join(err, failpoint.Hit("test/before-commit"))
	})
	return errors.Join(err, failpoint.Hit("test/after-commit"))
}

// A child is a process of its own.
type child struct {
	*proctest.Process
	s    *site
	cmd  *exec.Cmd
	name string // of its sessions
	log  string
}

// child starts a process with failpoints.
func (s *site) child(failpoints string, config childConfig) *child {
	s.t.Helper()
	c := &child{s: s, name: pgtest.Name(), log: filepath.Join(s.t.TempDir(), "child.log")}
	config.Database, config.AMQP, config.Schema, config.Prefix = named(pgtest.URL(), c.name), s.broker.URL(), s.schema, s.prefix
	text, err := json.Marshal(config)
	if err != nil {
		s.t.Fatal(err)
	}
	log, err := os.Create(c.log)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(text), "SAGAMILL_FAILPOINTS="+failpoints, "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = log
	if c.Process, err = proctest.Start(c.cmd); err != nil {
		s.t.Fatalf("start child: %v\n%s", err, c.said())
	}
	s.t.Cleanup(c.Kill)
	return c
}

func (c *child) said() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// died waits for its death by a failpoint, or by a handler.
func (c *child) died() {
	c.s.t.Helper()
	if code := c.Wait(childLimit); code != -1 || !c.Dead() {
		c.s.t.Fatalf("the process was not killed (dead %t, exit code %d):\n%s", c.Dead(), code, c.said())
	}
}

// retire lets it end in good order.
func (c *child) retire() {
	c.s.t.Helper()
	c.Terminate()
	if code := c.Wait(childLimit); code != 0 || strings.Contains(c.said(), "DATA RACE") {
		c.s.t.Errorf("the process ended with %d:\n%s", code, c.said())
	}
}

// stopped waits until a failpoint has stopped it.
func (c *child) stopped() {
	c.s.t.Helper()
	c.s.await("the process is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
}

// lose does to a process that hangs what broker and database do in the end: it is cut off from
// the one, and its transactions in the other are rolled back.
func (c *child) lose() {
	c.s.t.Helper()
	c.s.broker.Cut()
	if _, err := c.s.db.Exec(c.s.t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", c.name); err != nil {
		c.s.t.Fatal(err)
	}
}
