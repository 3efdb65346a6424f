package consumer_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/suites/consumerstorm"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

const childEnv = "SAGAMILL_TEST_CONSUMER_CHILD"

// A childConfig is what a consumer process is told.
type childConfig struct {
	Schema   string
	How      callResult            // of every handler
	Ends     map[string]callResult // by key, where it is another
	Batch    int
	Limit    int
	Lanes    int
	Messages []*childMessage
}

func (c *childConfig) how(_, key string) callResult { return cmp.Or(c.Ends[key], c.How) }

// A childMessage is a message on its way to another process.
type childMessage struct {
	ID       string
	Metadata message.Metadata
	Payload  string
}

// A child is a consumer process that has ended.
type child struct {
	status syscall.WaitStatus
	handed map[string]bool // messages that the process was given
	acked  map[string]bool // and those of which the broker has the ack
	said   string
}

func (c *child) killed() bool { return c.status.Signaled() && c.status.Signal() == syscall.SIGKILL }

// startChild lets a process of its own consume msgs, and returns when it has
// acked them all or is dead.
func startChild(t *testing.T, s *stage, config childConfig, msgs ...*message.Message) *child {
	t.Helper()
	return startArmed(t, s, config, "", msgs...)
}

// startArmed is startChild with failpoints.
func startArmed(t *testing.T, s *stage, config childConfig, failpoints string, msgs ...*message.Message) *child {
	t.Helper()
	config.Schema, config.Limit = s.schema, s.limit
	for _, msg := range msgs {
		config.Messages = append(config.Messages, &childMessage{msg.UUID, msg.Metadata, string(msg.Payload)})
	}
	input, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAsChild$")
	cmd.Env = append(os.Environ(), childEnv+"=1", "SAGAMILL_FAILPOINTS="+failpoints, "GORACE=atexit_sleep_ms=0")
	cmd.Stdin = bytes.NewReader(input)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	c := &child{status: cmd.ProcessState.Sys().(syscall.WaitStatus), handed: map[string]bool{}, acked: map[string]bool{}, said: said.String()}
	if err != nil && !c.killed() {
		t.Fatalf("child: %v\n%s%s", err, out, &said)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "handed "); ok {
			c.handed[id] = true
		}
		if id, ok := strings.CutPrefix(lines.Text(), "acked "); ok {
			c.acked[id] = true
		}
	}
	return c
}

// redelivered returns what the broker delivers after the process died: what it
// has no ack for, marked if it had handed it over.
func (c *child) redelivered(msgs []*message.Message) (again []*message.Message) {
	for _, msg := range msgs {
		if c.acked[msg.UUID] {
			continue
		}
		own := msg.Copy()
		if c.handed[msg.UUID] {
			own.Metadata.Set(outbox.PropertyRedelivered, "true")
		}
		again = append(again, own)
	}
	return again
}

// TestAsChild is a consumer process when it is told to be one, and a test of
// nothing otherwise.
func TestAsChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		return
	}
	if err := consume(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	os.Exit(0)
}

// consume handles what standard input says and returns when all is acked.
func consume() error {
	var config childConfig
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, pgtest.URL())
	if err != nil {
		return err
	}
	ledger, err := pgxpool.New(ctx, pgtest.URL())
	if err != nil {
		return err
	}
	s := &stage{pool: pool, schema: config.Schema, batch: config.Batch, limit: config.Limit, ledger: consumerstorm.NewLedger(ledger, config.Schema)}
	q := newQueue()
	var left atomic.Int64
	left.Store(int64(len(config.Messages)))
	q.handed = func(id string) { fmt.Println("handed", id) }
	q.acked = func(id string) {
		fmt.Println("acked", id)
		if left.Add(-1) == 0 {
			stop()
		}
	}
	for _, m := range config.Messages {
		msg := message.NewMessage(m.ID, []byte(m.Payload))
		msg.Metadata = m.Metadata
		q.publish(msg)
	}
	opts := s.options()
	opts.Lanes = config.Lanes
	c, err := consumer.New(pool, q, []consumer.Step{s.step(config.how)}, opts)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
