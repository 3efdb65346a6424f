//go:build failpoints

package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/proctest"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
)

// operatorEnv makes the test's binary an operator. It holds an operatorConfig.
const operatorEnv = "OUTBOX_TEST_OPERATOR"

// An operatorConfig is what an operator's process is told.
type operatorConfig struct{ Schema, Verb, Name string }

// A report is what an operator's process says in the end.
type report struct {
	N     int
	Error string
}

// A verb is something that an operator does, in two batches here.
type verb struct {
	points string // begins the names of its failpoints
	fill   string // what it is done to
	total  int
	batch  int  // of total in the first transaction
	repeat bool // done again, it does all of it again
	do     func(ctx context.Context, db *pgxpool.Pool, schema string) (int, error)
	done   string // counts what is done
	left   string // counts what is neither done nor as it was
	goes   int    // messages that a relay publishes when it is done
}

const insertHeld = `INSERT INTO {schema}.outbox_held (id, message_id, topic, type, scope, key, step, n, ordering_key,
		correlation_id, causation_id, content_type, payload, state, due_at, attempts, reason, refused_at)
	SELECT i, gen_random_uuid(), 't', 't', 's', 'k', 'step', '', 'k' || i, '', '', '', '', `

// sqlJournaled counts the messages that the journal says something was done to.
const sqlJournaled = "SELECT coalesce(sum(cardinality(ids)), 0) FROM {schema}.operator_journal"

var verbs = map[string]verb{
	"redrive": {
		points: "redrive/outbox-", total: 600, batch: 500, goes: 600,
		fill: insertHeld + `'dead', now(), 1, 'no queue', now() FROM generate_series(1, 600) i`,
		do: func(ctx context.Context, db *pgxpool.Pool, schema string) (int, error) {
			done, err := letters(db, schema).Redrive(ctx, operator.Filter{}, nil)
			return done.Sent(), err
		},
		done: "SELECT count(*) FROM {schema}.outbox_held WHERE state = 'delayed' AND attempts = 0",
		left: "SELECT count(*) FROM {schema}.outbox_held WHERE state NOT IN ('dead', 'delayed')",
	},
	"discard": {
		points: "redrive/outbox-", total: 600, batch: 500,
		fill: insertHeld + `'dead', now(), 1, 'no queue', now() FROM generate_series(1, 600) i`,
		do: func(ctx context.Context, db *pgxpool.Pool, schema string) (int, error) {
			return letters(db, schema).Discard(ctx, operator.Filter{}, nil)
		},
		done: "SELECT 600 - count(*) FROM {schema}.outbox_held",
		left: "SELECT count(*) FROM {schema}.outbox_held WHERE state <> 'dead'",
	},
	"release": {
		points: "redrive/outbox-", total: 600, batch: 500, goes: 600,
		fill: insertHeld + `'refused', now() + interval '1 hour', 1, 'no queue', now() FROM generate_series(1, 600) i; ` + strings.ReplaceAll(insertHeld, "SELECT i,", "SELECT 1000 + i,") + `'waiting', 'infinity', 0, '', NULL FROM generate_series(1, 600) i`,
		do: func(ctx context.Context, db *pgxpool.Pool, schema string) (int, error) {
			ids := make([]int64, 600)
			for i := range ids {
				ids[i] = int64(i + 1)
			}
			return letters(db, schema).Bury(ctx, operator.ByID(ids...))
		},
		done: "SELECT count(*) FROM {schema}.outbox_held h JOIN {schema}.outbox_held f ON f.id = h.id + 1000 WHERE h.state = 'dead' AND f.due_at < 'infinity'",
		left: "SELECT count(*) FROM {schema}.outbox_held h JOIN {schema}.outbox_held f ON f.id = h.id + 1000 WHERE (h.state = 'dead') <> (f.due_at < 'infinity')",
	},
	"replay": {
		points: "redrive/outbox-replay-", total: 1500, batch: 1000, repeat: true,
		fill: `INSERT INTO {schema}.outbox (message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, payload)
			SELECT gen_random_uuid(), 't', 't', 's', 'k', 'step', '', 'k' || i, '', '', '', '' FROM generate_series(1, 1500) i`,
		do: func(ctx context.Context, db *pgxpool.Pool, schema string) (int, error) {
			r, err := operator.NewReplayer(db, &operator.Options{Schema: schema})
			if err != nil {
				return 0, err
			}
			p, err := r.ReplayRange(ctx, operator.ReplayFilter{Since: time.Now().Add(-time.Hour)}, nil)
			return p.Replayed, err
		},
		done: "SELECT count(*) FROM {schema}.outbox WHERE leaf = -1",
		left: `SELECT count(*) FROM {schema}.outbox c WHERE leaf = -1 AND NOT EXISTS (SELECT FROM {schema}.outbox o
			WHERE o.leaf <> -1 AND o.message_id = c.message_id AND o.ordering_key = c.ordering_key AND o.created_at = c.created_at)`,
	},
}

func letters(db *pgxpool.Pool, schema string) *operator.DeadLetters {
	d, err := operator.NewDeadLetters(db, operator.Outbox, &operator.Options{Schema: schema})
	if err != nil {
		panic(err) // of a test
	}
	return d
}

// serveOperator is the main of an operator's process.
func serveOperator(text string) error {
	var c operatorConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		return err
	}
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = c.Name
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	var r report
	if r.N, err = verbs[c.Verb].do(context.Background(), pool, c.Schema); err != nil {
		r.Error = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// An operator is killed, failed, delayed and stopped around the commit of a batch, while
// another one does the same. Every message is redriven, released or discarded once, and
// what is counted as done is, and the journal says so; a range is replayed as often as it
// was asked for.
func TestEveryFailpointOfAnOperator(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for _, p := range failpoint.Points("redrive") {
		of := func(v verb) bool {
			return strings.TrimSuffix(strings.TrimSuffix(p.Name, "before-commit"), "after-commit") == v.points
		}
		if strings.HasPrefix(p.Name, "redrive/outbox-") && !slices.ContainsFunc([]verb{verbs["redrive"], verbs["replay"]}, of) {
			t.Errorf("%s is no verb's", p.Name)
		}
	}
	for name, v := range verbs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, schema := pgtest.Schema(t)
			for _, at := range []string{"before-commit", "after-commit"} {
				for _, action := range failpoint.Actions() {
					t.Run(at+" "+action, func(t *testing.T) {
						needtest.Share(t)
						o := &operation{T: t, verb: v, name: name, pool: pool, schema: schema, committed: at == "after-commit"}
						o.strike(v.points+at, action)
					})
				}
			}
		})
	}
}

// An operation is what is done to one outbox, by an operator who is struck and by one
// who is not.
type operation struct {
	*testing.T
	verb
	name      string
	pool      *pgxpool.Pool
	schema    string
	committed bool // the first batch has, where the fault strikes

	process *operatorProcess
}

// strike lets action strike an operator at point.
func (o *operation) strike(point, action string) {
	o.exec("TRUNCATE {schema}.outbox, {schema}.outbox_held, {schema}.operator_journal")
	o.exec(o.fill)
	o.process = o.start(point + "=" + action)
	first := 0
	if o.committed {
		first = o.batch
	}
	switch action {
	case "kill":
		o.process.wait()
		o.is(o.done, first)
		o.is(sqlJournaled, first)
		o.again(o.total - first)
	case "error":
		if r := o.process.report(); r.N != 0 || r.Error == "" {
			o.Errorf("the operator who failed reports %+v", r)
		}
		o.is(o.done, first)
		o.is(sqlJournaled, first)
		o.again(o.total - first)
	case "delay":
		o.await("the operator is delayed", func() bool { return len(o.process.strikes()) > 0 })
		n, err := o.do(o.Context(), o.pool, o.schema)
		r := o.process.report()
		if sum := n + r.N; err != nil || r.Error != "" || sum != o.total && !o.repeat || o.repeat && (n != o.total || r.N != o.total) {
			o.Errorf("%d and %+v are done, %v; want %d", n, r, err, o.total)
		}
	case "stop":
		o.stopped(first)
	}
	if got, want := o.process.strikes(), []string{point + "=" + action}; !slices.Equal(got, want) {
		o.Errorf("%q struck, want %q", got, want)
	}
	o.finish(action, first)
}

// stopped lets another operator do it all, and wakes the first one.
func (o *operation) stopped(first int) {
	o.Helper()
	o.await("the operator hangs", func() bool { return proctest.Stopped(o.process.cmd.Process.Pid) })
	if !o.committed { // as PostgreSQL does by itself, later
		o.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '" + o.process.name + "' AND state = 'idle in transaction'")
	}
	o.again(o.total - first)
	if err := o.process.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		o.Fatal(err)
	}
	want := report{N: first}
	if o.repeat && o.committed {
		want.N = o.total
	}
	if r := o.process.report(); r.N != want.N || (r.Error == "") != o.committed {
		o.Errorf("the operator who hung reports %+v, want %d", r, want.N)
	}
}

// again does it once more, to so many, or to all.
func (o *operation) again(want int) {
	o.Helper()
	if o.repeat {
		want = o.total
	}
	n, err := o.do(o.Context(), o.pool, o.schema)
	if n != want || err != nil {
		o.Errorf("another operator does it to %d, %v; want %d", n, err, want)
	}
}

// finish checks that everything is done, and what a relay makes of it.
func (o *operation) finish(action string, first int) {
	o.Helper()
	want := o.total
	if o.repeat {
		switch {
		case action == "delay" || action == "stop" && o.committed:
			want += o.total
		default:
			want += first
		}
	}
	o.is(o.done, want)
	o.is(o.left, 0)
	o.is(sqlJournaled, want)
	if o.repeat {
		return // how copies are published is another test's
	}
	counter := &counting{}
	relay, err := outbox.NewRelay(o.pool, counter, &outbox.RelayOptions{Schema: o.schema, NoListen: true, PollMax: 20 * time.Millisecond})
	if err != nil {
		o.Fatal(err)
	}
	ctx, stop := context.WithCancel(o.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	o.await("all is published", func() bool {
		s, err := relay.Stats(o.Context())
		return err == nil && s.Stored+s.Delayed+s.Waiting+s.Refused == 0
	})
	stop()
	if err := <-ended; err != nil {
		o.Errorf("Run = %v", err)
	}
	if total, distinct := counter.counts(); total != o.goes || distinct != o.goes {
		o.Errorf("%d messages are published, %d different ones, want %d", total, distinct, o.goes)
	}
}

func (o *operation) exec(statement string) {
	o.Helper()
	if _, err := o.pool.Exec(o.Context(), strings.ReplaceAll(statement, "{schema}", o.schema), pgx.QueryExecModeSimpleProtocol); err != nil {
		o.Fatalf("%s: %v", statement, err)
	}
}

// is compares what query counts.
func (o *operation) is(query string, want int) {
	o.Helper()
	o.await(fmt.Sprintf("%s is %d", query, want), func() bool { // a dead process's transaction ends when the server has noticed
		var got int
		err := o.pool.QueryRow(o.Context(), strings.ReplaceAll(query, "{schema}", o.schema)).Scan(&got)
		return err == nil && got == want
	})
}

func (o *operation) await(what string, done func() bool) {
	o.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(deadline) {
			o.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// A counting publisher counts what it confirms.
type counting struct {
	mu  sync.Mutex
	ids []string
}

func (c *counting) PublishBatch(_ context.Context, batch []outbox.Publication) []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range batch {
		c.ids = append(c.ids, p.Message.UUID)
	}
	return make([]error, len(batch))
}

func (c *counting) counts() (total, distinct int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := slices.Clone(c.ids)
	slices.Sort(ids)
	return len(ids), len(slices.Compact(ids))
}

// An operatorProcess is one, seen from the test.
type operatorProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	name   string // of its sessions on PostgreSQL
	struck string
	out    io.Reader
}

// start starts an operator that is armed with fault. It ends with the test.
func (o *operation) start(fault string) *operatorProcess {
	o.Helper()
	p := &operatorProcess{t: o.T, name: pgtest.Name(), struck: filepath.Join(o.TempDir(), "struck"), cmd: exec.Command(os.Args[0])}
	text, err := json.Marshal(operatorConfig{o.schema, o.name, p.name})
	if err != nil {
		o.Fatal(err)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	devservices.DieWithParent(p.cmd.SysProcAttr, syscall.SIGKILL)
	p.cmd.Env = append(os.Environ(), operatorEnv+"="+string(text), "SAGAMILL_FAILPOINTS="+fault, "SAGAMILL_FAILPOINT_LOG="+p.struck)
	p.cmd.Stderr = os.Stderr
	if p.out, err = p.cmd.StdoutPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	return p
}

// wait waits for the process to have been killed.
func (p *operatorProcess) wait() {
	p.t.Helper()
	err := p.cmd.Wait()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("the operator ended with %v, not by the failpoint", err)
	}
}

// report waits for what the operator says in the end.
func (p *operatorProcess) report() (r report) {
	p.t.Helper()
	if err := json.NewDecoder(p.out).Decode(&r); err != nil {
		p.t.Fatalf("what the operator says: %v", err)
	}
	return r
}

func (p *operatorProcess) strikes() []string {
	p.t.Helper()
	struck, err := failpoint.Struck(p.struck)
	if err != nil {
		p.t.Fatal(err)
	}
	return struck
}
