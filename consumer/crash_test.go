//go:build failpoints

package consumer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// TestMain consumes, or handles one delivery, instead of running the tests when it
// is told to. The process is meant to be struck in it.
func TestMain(m *testing.M) {
	if text := os.Getenv(yardEnv); text != "" {
		if err := serveYard(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if schema := os.Getenv("SAGAMILL_TEST_SCHEMA"); schema != "" {
		consumeOnce(schema)
	}
	os.Exit(m.Run())
}

func consumeOnce(schema string) {
	pool, err := pgxpool.New(context.Background(), pgtest.URL())
	if err != nil {
		panic(err)
	}
	f := &fixture{pool: pool, schema: schema}
	work := f.effect("paid")
	if os.Getenv("SAGAMILL_TEST_DEADLY") != "" {
		work = deadly(f)
	}
	step := f.step(work, f.effect("refunded"))
	step.MaxAttempts = deadlyBudget
	childEffect(f, &step)
	var sub message.Subscriber = newQueueSubscriber()
	if os.Getenv("SAGAMILL_TEST_UNMARKED") != "" {
		sub = brokerAway{}
	}
	c, err := New(pool, sub, []Step{step}, &Options{Schema: schema})
	if err != nil {
		panic(err)
	}
	c.executor.effects.effectMargin = childMargin
	if os.Getenv("SAGAMILL_TEST_PARKED") != "" {
		rows, err := c.retrier.takeParked(context.Background(), 1, c.retrier.stepNames...)
		if err != nil {
			panic(err)
		}
		for _, row := range rows {
			c.retrier.runParkedMessage(context.Background(), &row)
		}
		os.Exit(0)
	}
	msg := act("k")
	if os.Getenv("SAGAMILL_TEST_UNDO") != "" {
		msg = undo("k")
	}
	if os.Getenv("SAGAMILL_TEST_REPLAYED") != "" {
		msg = replayed(msg)
	}
	if os.Getenv("SAGAMILL_TEST_REDELIVERED") != "" {
		msg.Metadata.Set(outbox.PropertyRedelivered, "true")
	}
	b := newBoard(&Options{Lanes: 1, BatchSize: 1}, 1, &outageWatch{})
	b.putEntry(context.Background(), c.router.newBoardEntry(msg.Metadata.Get(outbox.PropertyType), msg))
	c.router.runLane(context.Background(), context.Background(), b)
	select {
	case <-msg.Acked():
		os.Exit(0)
	default:
		os.Exit(exitNacked)
	}
}

// exitNacked is the exit status of a child that gave its delivery back.
const exitNacked = 3

// deadlyBudget is small, so that the deadly handler's children are few.
const deadlyBudget = 3

// deadly returns a handler that leaves a trace outside its transaction and
// kills the process.
func deadly(f *fixture) Handler[payment] {
	return func(ctx context.Context, _ pgx.Tx, _ Message[payment], _ Emit) error {
		if _, err := f.pool.Exec(ctx, "INSERT INTO "+f.schema+".effect (what) VALUES ('entered')"); err != nil {
			return err
		}
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// child runs this test binary on one delivery and returns whether it was
// killed.
func child(t *testing.T, f *fixture, env ...string) (killed bool) {
	t.Helper()
	cmd := childCommand(f, env...)
	out, err := cmd.CombinedOutput()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() && err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	return status.Signaled() && status.Signal() == syscall.SIGKILL
}

func childCommand(f *fixture, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "SAGAMILL_TEST_SCHEMA="+f.schema, "GORACE=atexit_sleep_ms=0"), env...)
	return cmd
}

// A message that kills the process does so at most MaxAttempts times, whether
// it comes from the broker or from the parked ones.
func TestADeadlyMessageEndsAsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	deaths := 0
	for i := range deadlyBudget + 3 {
		env := []string{"SAGAMILL_TEST_DEADLY=1"}
		if i > 0 {
			env = append(env, "SAGAMILL_TEST_REDELIVERED=1")
		}
		if child(t, f, env...) {
			deaths++
		}
	}
	if deaths != deadlyBudget {
		t.Errorf("the message killed %d processes, want %d", deaths, deadlyBudget)
	}
	if got, want := f.parked(t), fmt.Sprintf("dead action attempts-exhausted %d", deadlyBudget); got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

// A subscriber that does not mark redeliveries makes no difference: then every
// entry is counted beforehand.
func TestTheBudgetHoldsWithoutTheRedeliveredMark(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	deaths := 0
	for range deadlyBudget + 3 {
		if child(t, f, "SAGAMILL_TEST_DEADLY=1", "SAGAMILL_TEST_UNMARKED=1") {
			deaths++
		}
	}
	if deaths != deadlyBudget {
		t.Errorf("the message killed %d processes, want %d", deaths, deadlyBudget)
	}
	if got, want := f.parked(t), fmt.Sprintf("dead action attempts-exhausted %d", deadlyBudget); got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

func TestADeadlyParkedMessageEndsAsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	failed := f.consumer(t, Options{}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
		return fmt.Errorf("first")
	}, nil))
	handle(t, failed, act("k"))
	deaths := 0
	for range deadlyBudget + 2 {
		if child(t, f, "SAGAMILL_TEST_DEADLY=1", "SAGAMILL_TEST_PARKED=1") {
			deaths++
		}
		f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()") // the lease runs out
	}
	if deaths != deadlyBudget-1 {
		t.Errorf("the message killed %d processes, want %d after the first attempt", deaths, deadlyBudget-1)
	}
	want := stored{Row: fmt.Sprintf("dead %d 0", deadlyBudget), Parked: fmt.Sprintf("dead action attempts-exhausted %d", deadlyBudget)}
	compareStored(t, want, stored{Row: f.row(t), Parked: f.parked(t)})
}
