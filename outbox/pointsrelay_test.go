//go:build failpoints

package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// relayEnv makes the test's binary a relay. It holds a childConfig.
const relayEnv = "OUTBOX_TEST_RELAY"

// service is the one that listens.
const service = "points"

// TestMain runs a relay or an operator instead of the tests when it is told to.
func TestMain(m *testing.M) {
	for name, serve := range map[string]func(string) error{relayEnv: serveRelay, operatorEnv: serveOperator} {
		if text := os.Getenv(name); text != "" {
			if err := serve(text); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(3)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// A childConfig is what a relay process is told.
type childConfig struct {
	Schema, Prefix, Name string
	Retention            time.Duration
}

const (
	// window is how many messages a relay may publish again.
	window = 10

	// shortLease is how long the process that is struck has the lead without a sign of
	// life, and longLease how long the one that takes over has: it must not lose it
	// because the machine is busy.
	shortLease = time.Second
	longLease  = time.Minute
)

// relayOptions are those of every relay here. Refused messages come back soon.
func relayOptions(schema string, lease time.Duration) *outbox.RelayOptions {
	return &outbox.RelayOptions{
		Schema: schema, Window: window, Lanes: 2, Lease: lease, PollMax: 20 * time.Millisecond,
		MaxAttempts: 10_000, RetryBase: 20 * time.Millisecond, RetryCap: 50 * time.Millisecond, RotateBytes: 1,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
}

// serveRelay is the main of a relay process. It ends in good order on SIGTERM.
func serveRelay(text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		return err
	}
	config.MaxConns = 4
	config.ConnConfig.RuntimeParams["application_name"] = c.Name
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	topology, err := rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{Prefix: c.Prefix})
	if err != nil {
		return err
	}
	pub, err := rabbitmq.NewPublisher(topology, nil)
	if err != nil {
		return err
	}
	opts := relayOptions(c.Schema, shortLease)
	opts.Retention = c.Retention
	relay, err := outbox.NewRelay(pool, pub, opts)
	if err != nil {
		return err
	}
	relay.Brisk()
	go func() { _ = proctest.Serve(http.NotFoundHandler()) }() // ends with the process; says that it runs
	return errors.Join(relay.Run(ctx), pub.Close())
}

// A child is a relay process, seen from the test.
type child struct {
	*proctest.Process
	t      *testing.T
	name   string // of its sessions on PostgreSQL
	struck string // file with the failpoints that have struck
	said   string // file with what it has written to its standard error
	asked  bool   // to leave
}

// startChild starts a relay that is armed with fault. It ends with the test.
func startChild(t *testing.T, c childConfig, fault string) *child {
	t.Helper()
	dir := t.TempDir()
	p := &child{t: t, name: c.Name, struck: filepath.Join(dir, "struck"), said: filepath.Join(dir, "said")}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.Create(p.said)
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayEnv+"="+string(text), "SAGAMILL_FAILPOINTS="+fault, "SAGAMILL_FAILPOINT_LOG="+p.struck)
	cmd.Stderr = said
	if p.Process, err = proctest.Start(cmd); err != nil {
		t.Fatalf("start relay: %v\n%s", err, p.words())
	}
	t.Cleanup(func() {
		p.Kill()
		if words := p.words(); t.Failed() || strings.Contains(words, "DATA RACE") {
			t.Errorf("the relay said last:\n%s", words)
		}
	})
	return p
}

// words are what the relay has written to its standard error.
func (p *child) words() string {
	text, err := os.ReadFile(p.said)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// strikes returns the failpoints that have struck.
func (p *child) strikes() []string {
	p.t.Helper()
	struck, err := failpoint.Struck(p.struck)
	if err != nil {
		p.t.Fatal(err)
	}
	return struck
}

// leave asks the relay to finish.
func (p *child) leave() {
	if !p.asked {
		p.asked = true
		p.Terminate()
	}
}

// retire waits until the relay has finished in good order.
func (p *child) retire() {
	p.t.Helper()
	p.leave()
	if code := p.Wait(patience); code != 0 {
		p.t.Errorf("the relay ends with %d, want 0", code)
	}
}
