//go:build failpoints

package saga_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

const childEnv = "SAGAMILL_TEST_SAGA_CHILD"

// A childConfig is what a process of its own is told: to orchestrate, unless it has a
// trip to start or something to decide.
type childConfig struct {
	Database, AMQP, Schema, Prefix string
	Patience                       time.Duration

	Start string // key of a trip
	Dies  string // where it kills itself then: beforeCommit or afterCommit

	Decide operator.Decision
	About  string // key
}

// Where a caller of Start may die besides.
const (
	beforeCommit = "before its COMMIT"
	afterCommit  = "after its COMMIT"
)

// TestMain is one of these processes when it is told to be.
func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitFailed)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// exitFailed is the exit code of a process that says what has failed.
const exitFailed = 3

func runChild(text string) error {
	var config childConfig
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch {
	case config.Start != "":
		return startTrip(ctx, config)
	case config.About != "":
		return decideTrip(ctx, config)
	}
	opts := saga.Options{Patience: config.Patience, HousekeepPoll: 50 * time.Millisecond, Logger: slog.Default()}
	_, run, err := newOrchestrator(ctx, config.Database, topologyOf(config.AMQP, config.Prefix, orchestrators), config.Schema, opts)
	if err != nil {
		return err
	}
	return run(ctx)
}

// startTrip starts an instance as a service does.
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
		_, err := s.Start(ctx, tx, saga.ID{Scope: "tenant", Key: config.Start}, trip{Item: "x"})
		config.dies(beforeCommit)
		return err
	})
	config.dies(afterCommit)
	return errors.Join(err, conn.Close(ctx))
}

func (c childConfig) dies(where string) {
	if c.Dies == where {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// decideTrip decides about an instance as an operator does.
func decideTrip(ctx context.Context, config childConfig) error {
	db, err := pgxpool.New(ctx, config.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	n, err := operator.NewInstances(db, &operator.Options{Schema: config.Schema})
	if err != nil {
		return err
	}
	if string(config.Decide.Result) == "null" {
		config.Decide.Result = nil // which JSON does not tell from null
	}
	_, err = n.Decide(ctx, saga.Address{Key: config.About}, config.Decide)
	return err
}

// startChild starts a process in p's schema that f is to strike.
func (p *place) startChild(f faulttest.Fault, config childConfig) *faulttest.Victim {
	p.t.Helper()
	config.Schema = p.schema
	if config.Database == "" {
		config.Database = pgtest.URL()
	}
	text, err := json.Marshal(config)
	if err != nil {
		p.t.Fatal(err)
	}
	return faulttest.Start(p.t, f, childEnv+"="+string(text))
}

// A child is an orchestrator that is a process of its own.
type child struct {
	*faulttest.Victim
	name string // of its sessions
}

// child starts an orchestrator that f is to strike, if anything.
func (s *site) child(f faulttest.Fault, config childConfig) *child {
	s.t.Helper()
	c := &child{name: pgtest.Name()}
	config.Database, config.AMQP, config.Prefix = named(pgtest.URL(), c.name), s.broker.URL(), s.prefix
	c.Victim = s.startChild(f, config)
	return c
}

// fault returns an action at the first hit of a point.
func fault(point, action string) faulttest.Fault {
	all := failpoint.Points()
	i := slices.IndexFunc(all, func(p failpoint.Point) bool { return p.Name == point })
	return faulttest.Fault{Point: all[i], Action: action}
}
