package relaystorm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/internal/testing/relaytest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	relayEnv   = "SAGAMILL_TEST_STORM_RELAY"
	service    = "storm"
	relayConns = 4

	leavePath  = "/leave"
	leaveLimit = 30 * time.Second
)

// window is the most messages that the relay publishes again after a kill. It is
// small beside a round, or the count of repeats would prove nothing.
const window = 64

const (
	// lease is how long a dead relay is waited for. It is many times what a busy
	// machine holds a process up.
	lease = 2 * time.Second

	// publishTimeout is longer than the confirms are held back.
	publishTimeout = 3 * time.Second
)

// relayOptions are those of every relay of the storm. Refused messages come back
// soon and never die, and the log rotates all the time.
func relayOptions(schema string) *outbox.RelayOptions {
	return &outbox.RelayOptions{
		Schema: schema, Window: window, Lease: lease,
		PollMax: 50 * time.Millisecond, PublishTimeout: publishTimeout,
		MaxAttempts: 10_000, RetryBase: 20 * time.Millisecond, RetryCap: 200 * time.Millisecond,
		RotateBytes: 32 << 10, RotateAfter: time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
}

// A relayConfig is the configuration of a relay process, in its environment.
type relayConfig struct {
	Name, DatabaseURL, AMQPURL, Prefix, Schema, Lock string
}

// TestMain runs a relay instead of the tests if the environment asks for it.
func TestMain(m *testing.M) {
	if text := os.Getenv(relayEnv); text != "" {
		if err := serveRelay(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveRelay is the main of a relay process. A request to leavePath ends the
// relay in good order and is answered when it has.
func serveRelay(text string) error {
	var c relayConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	lock, err := os.OpenFile(c.Lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(c.DatabaseURL)
	if err != nil {
		return err
	}
	config.MaxConns = relayConns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	topology, err := rabbitmq.NewConfig(c.AMQPURL, service, &rabbitmq.ConfigOptions{Prefix: c.Prefix})
	if err != nil {
		return err
	}
	pub, err := rabbitmq.NewPublisher(topology, nil)
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, &markedPublisher{to: pub, name: c.Name, lock: lock}, relayOptions(c.Schema))
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(relay.Run(ctx), pub.Close()) }() // ends with leave, or the process
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+leavePath, func(rw http.ResponseWriter, _ *http.Request) {
		leave()
		if err := <-ended; err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	})
	return proctest.Serve(mux)
}

// A markedPublisher marks each message with its process, a unique number, and whether another process was
// publishing at the time. The lock of a file shows that: it ends with the process that holds it, and not when
// that is stopped. The file names its last holder.
type markedPublisher struct {
	to   outbox.Publisher
	name string
	lock *os.File

	mu     sync.Mutex
	inside int // calls under way
	copies int
}

func (p *markedPublisher) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	p.enter(batch)
	defer p.leave()
	return p.to.PublishBatch(ctx, batch)
}

func (p *markedPublisher) enter(batch []outbox.Publication) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inside++
	alone := syscall.Flock(int(p.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	if alone {
		_ = p.lock.Truncate(0)
		_, _ = p.lock.WriteAt([]byte(p.name), 0)
	}
	for _, publication := range batch {
		p.copies++
		metadata := publication.Message.Metadata
		metadata[relaytest.HeaderRelay], metadata[relaytest.HeaderCopy] = p.name, fmt.Sprint(p.name, "/", p.copies)
		if !alone {
			metadata[relaytest.HeaderSecond] = "true"
		}
	}
}

func (p *markedPublisher) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inside--; p.inside == 0 {
		_ = syscall.Flock(int(p.lock.Fd()), syscall.LOCK_UN)
	}
}

// A relay is a relay process, seen from the test.
type relay struct {
	*proctest.Process
	name string
	log  string // file with what it said
}

// startRelay starts a relay that is armed with the failpoint at, if any.
func startRelay(t *testing.T, dir string, c relayConfig, at string) *relay {
	t.Helper()
	r := &relay{name: c.Name, log: filepath.Join(dir, c.Name+".log")}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayEnv+"="+string(text), "SAGAMILL_FAILPOINTS="+at)
	cmd.Stderr = log
	if r.Process, err = proctest.Start(cmd); err != nil {
		t.Fatalf("start relay: %v\n%s", err, r.said())
	}
	return r
}

// retire lets the relay finish in good order.
func (r *relay) retire(t *testing.T) {
	t.Helper()
	defer r.Kill()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+leavePath, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Timeout: leaveLimit}).Do(request)
	if err != nil {
		t.Fatalf("%s did not end in good order: %v\n%s", r.name, err, r.said())
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s did not end in good order: %s\n%s", r.name, response.Status, r.said())
	}
}

// maxSaid is how much of a process's output a failure shows.
const maxSaid = 4000

// said returns the end of what the relay has written to its standard error.
func (r *relay) said() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(string(text[max(0, len(text)-maxSaid):]), "")
}

// raced reports whether the race detector has found something.
func (r *relay) raced() bool {
	text, err := os.ReadFile(r.log)
	return err == nil && strings.Contains(string(text), "DATA RACE")
}
