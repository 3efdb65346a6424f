package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// numbered is the n-th action of a key.
func numbered(key, n string) *message.Message {
	msg := act(key)
	msg.Metadata.Set(outbox.HeaderKey, key+":process-payment#"+n)
	return msg
}

// Messages of one key come to a lane together, and the first of them fails, at
// once or by what it has queued. The step is Ordered: the others wait behind it.
func TestABatchKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(in Message[payment]) error{
		"error": func(Message[payment]) error { return errors.New("no") },
		"queued": func(in Message[payment]) error {
			in.Queue("SELECT 1/($1::integer - 1)", 1)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			step := f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
				in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key+in.N)
				if in.Key == "k" && in.N == "1" {
					return fail(in)
				}
				return nil
			}, nil)
			step.Ordered = true
			c := f.consumer(t, Options{BatchTime: time.Minute}, step)
			settle(t, c, numbered("other", "1"), numbered("k", "1"), numbered("k", "2"), numbered("third", "1"))
			if got, want := f.effects(t), "other1, third1"; got != want {
				t.Errorf("effects %q, want %q", got, want)
			}
			if got, want := f.parked(t), "retrying action failed 1; retrying action waits-for-order 0"; got != want {
				t.Errorf("parked %q, want %q", got, want)
			}
		})
	}
}

// One consumer has messages of two sagas in one order, and another one in the other.
// Their handlers lock a row of their saga, and do not wait for each other in a circle.
func TestBatchesOfCrossingSagasDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, "INSERT INTO {schema}.effect (what) VALUES ('a'), ('b')")
	waits := func() bool {
		return f.texts(t, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}.effect%'")[0] != "0"
	}
	var locked, lines atomic.Int32
	step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
		_, err := tx.Exec(ctx, "UPDATE "+f.schema+".effect SET what = what || $2 WHERE left(what, 1) = $1", in.Key, in.N)
		if locked.Add(1) == 1 {
			for locked.Load() == 1 && !waits() && ctx.Err() == nil { // until the other one has a row, or wants this one
			}
		}
		return err
	}, nil)
	done := make(chan int, 2)
	for _, msgs := range [][]*message.Message{{numbered("a", "1"), numbered("b", "1")}, {numbered("b", "2"), numbered("a", "2")}} {
		c := f.consumer(t, Options{Logger: slog.New(counting{&lines}), BatchTime: time.Minute}, step)
		go func() { done <- len(settle(t, c, msgs...)) }()
	}
	if n := <-done + <-done; n != 4 || lines.Load() > 0 || locked.Load() != 4 {
		t.Errorf("acked %d messages after %d entries, with %d lines in the log; want 4, 4 and none", n, locked.Load(), lines.Load())
	}
	if got := f.parked(t); got != "" {
		t.Errorf("parked %q", got)
	}
}

// Handlers run saga by saga, and those of one in the order of its deliveries.
func TestABatchRunsSagaBySaga(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{BatchTime: time.Minute}, f.step(f.numbers, nil))
	settle(t, c, numbered("b", "3"), numbered("a", "2"), numbered("b", "1"), numbered("a", "1"), numbered("b", "2"))
	if got, want := f.effects(t), "a2, a1, b3, b1, b2"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

// numbers is a handler that leaves key and number in the effect table.
func (f *fixture) numbers(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key+in.N)
	return err
}

// There is time for one message in each batch. What sorts last and comes first is
// not put off for what comes later.
func TestNothingIsPutOffForGood(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{BatchTime: time.Nanosecond}, f.step(f.numbers, nil))
	at := time.Now()
	put := func(msgs ...*message.Message) (attempts []*attempt) {
		for _, a := range jobsOf(t, c, msgs...) {
			at = at.Add(time.Second)
			a.origin.at = at
			attempts = append(attempts, a)
		}
		return attempts
	}
	left := c.executor.executeLoad(t.Context(), t.Context(), put(numbered("z", "1"), numbered("z", "2"), numbered("y", "1"), numbered("a", "1")))
	for _, key := range []string{"b", "c", "d", "e", "f"} {
		left = c.executor.executeLoad(t.Context(), t.Context(), append(left, put(numbered(key, "1"))...))
	}
	got := strings.Split(f.effects(t), ", ")
	if at := func(what string) int { return slices.Index(got, what) }; at("z1") != 1 || at("z2") < 0 || at("z2") > 5 || at("y1") < 0 {
		t.Errorf("effects %q, want a1 and z1 first, and all of z and y", got)
	}
}

// counts is a handler that queues a line with what it sees of its saga's lines: those
// of handlers before it.
func (f *fixture) counts(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
	var lines string
	err := tx.QueryRow(ctx, "SELECT count(*)::text FROM "+f.schema+".effect WHERE left(what, 1) = $1", in.Key).Scan(&lines)
	in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key+in.N+" saw "+lines)
	return err
}

// A handler sees what an earlier one of its saga has queued in the same transaction.
func TestAHandlerSeesWhatItsSagaHasQueued(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{BatchTime: time.Minute}, f.step(f.counts, nil))
	settle(t, c, numbered("b", "1"), numbered("c", "1"), numbered("b", "2"), numbered("a", "1"), numbered("b", "3"))
	if got, want := f.effects(t), "a1 saw 0, b1 saw 0, b2 saw 1, b3 saw 2, c1 saw 0"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
	if xids := f.texts(t, "SELECT DISTINCT xmin::text FROM {schema}.inbox"); len(xids) != 1 {
		t.Errorf("%d transactions, want one", len(xids))
	}
}

// Statements that a handler has queued fail for the next handler of its saga, in each way that they can. Only
// the work of the handler that queued them is lost, and no other handler is entered again.
func TestWhatASagaHasQueuedFails(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"SELECT 1/length($1)", "INSERT INTO nowhere VALUES ($1)"} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprint(statement, ", direct ", direct), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				entries := 0
				c := f.consumer(t, Options{BatchTime: time.Minute}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
					entries++
					if in.Key != "b" || in.N != "2" {
						return f.counts(ctx, tx, in, emit)
					}
					in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", "b2 queued")
					in.Queue(statement, "")
					if direct {
						return f.numbers(ctx, tx, in, emit)
					}
					return nil
				}, nil))
				settle(t, c, numbered("a", "1"), numbered("b", "1"), numbered("b", "2"), numbered("b", "3"), numbered("c", "1"))
				if got, want := f.effects(t), "a1 saw 0, b1 saw 0, b3 saw 1, c1 saw 0"; got != want || entries != 5 {
					t.Errorf("effects %q after %d entries, want %q after 5", got, entries, want)
				}
				if got, want := f.parked(t), "retrying action failed 1"; got != want {
					t.Errorf("parked %q, want %q", got, want)
				}
			})
		}
	}
}

// What was sent ahead stays when what is sent at the end has to be sent once more.
func TestWhatWasSentAheadIsSentOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	entries := 0
	c := f.consumer(t, Options{BatchTime: time.Minute}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		entries++
		in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key+in.N)
		if in.Key == "c" {
			in.Queue("SELECT 1/length($1)", "")
		}
		return nil
	}, nil))
	settle(t, c, numbered("a", "1"), numbered("b", "1"), numbered("b", "2"), numbered("c", "1"), numbered("d", "1"))
	if got, want := f.effects(t), "b1, a1, b2, d1"; got != want || entries != 5 {
		t.Errorf("effects %q after %d entries, want %q after 5", got, entries, want)
	}
	if got, want := f.parked(t), "retrying action failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

// A message that is not going to run needs to see nothing.
func TestNothingIsSentAheadOfADuplicate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{BatchTime: time.Minute}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", in.Key+in.N)
		return nil
	}, nil))
	handle(t, c, numbered("a", "2"))
	settle(t, c, numbered("b", "1"), numbered("a", "1"), numbered("a", "2"))
	if got := f.texts(t, "SELECT DISTINCT xmin::text FROM {schema}.effect WHERE what <> 'a2'"); len(got) != 1 {
		t.Errorf("what was queued was sent in %d parts, want one", len(got))
	}
}
