package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// losing returns a handler that loses against another transaction as often as it is told.
func (f *fixture) losing(code string, losses int, entries *atomic.Int32) Handler[payment] {
	paid := f.effect("paid")
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if err := paid(ctx, tx, in, emit); err != nil {
			return err
		}
		if int(entries.Add(1)) > losses {
			return nil
		}
		_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'it lost' USING ERRCODE = '"+code+"'; END $$")
		return err
	}
}

// A transaction that loses against others is repeated at once, and together that is one attempt.
func TestALostRaceIsRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		code    string
		losses  int
		single  bool
		entries int32
		want    stored
	}{
		"a deadlock":              {"40P01", 3, false, 4, stored{Row: "done 1 0", Effects: "paid k 1"}},
		"a serialization failure": {"40001", 3, false, 4, stored{Row: "done 1 0", Effects: "paid k 1"}},
		"always":                  {"40P01", 100, false, maxRepeats + 1, stored{Row: "retrying 1 0", Parked: "retrying action failed 1"}},
		"a step that runs alone":  {"40P01", 1, true, 1, stored{Row: "retrying 1 0", Parked: "retrying action failed 1"}},
		"another error":           {"22012", 1, false, 1, stored{Row: "retrying 1 0", Parked: "retrying action failed 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var entries atomic.Int32
			step := f.step(f.losing(tt.code, tt.losses, &entries), nil)
			step.Single = tt.single
			handle(t, f.consumer(t, Options{}, step), act("k"))
			compareStored(t, tt.want, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
			if entries.Load() != tt.entries && name != "always" || entries.Load() > tt.entries { // it may take too long
				t.Errorf("%d entries, want %d", entries.Load(), tt.entries)
			}
		})
	}
}

// batchSizesSeen is an Observer that notes the size of the batch in which each message was done.
type batchSizesSeen struct {
	mu  sync.Mutex
	all []int
}

func (*batchSizesSeen) Enter(context.Context, *Delivery) Entry { return nil }
func (*batchSizesSeen) Ended(context.Context, Transaction)     {}
func (b *batchSizesSeen) Observe(_ context.Context, e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Outcome == OutcomeDone {
		b.all = append(b.all, e.Batch)
	}
}

// A batch that loses is repeated once. If it loses again, its messages are handled one by one. Nobody's attempts are spent.
func TestABatchThatLosesARaceIsRepeated(t *testing.T) {
	t.Parallel()
	for losses, want := range map[int]int32{1: 2, 2: 3, 4: 5} { // entries of the message that loses
		together := map[bool]string{true: "[3 3 3]", false: "[1 1 1]"}[losses == 1]
		t.Run(fmt.Sprint(losses, " losses"), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var entries, others atomic.Int32
			loses, paid := f.losing("40P01", losses, &entries), f.effect("paid")
			step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				if in.Key == "b" {
					return loses(ctx, tx, in, emit)
				}
				others.Add(1)
				return paid(ctx, tx, in, emit)
			}, nil)
			sizes := &batchSizesSeen{}
			c := f.consumer(t, Options{BatchTime: time.Minute, Observer: sizes}, step)
			settle(t, c, act("a"), act("b"), act("c"))
			if got := fmt.Sprint(sizes.all); got != together {
				t.Errorf("the messages were done in batches of %s, want %s", got, together)
			}
			if got := f.texts(t, "SELECT concat_ws(' ', key, state, attempts) FROM {schema}.inbox ORDER BY key"); fmt.Sprint(got) != "[a done 1 b done 1 c done 1]" {
				t.Errorf("rows %v; parked %s", got, f.parked(t))
			}
			if entries.Load() != want {
				t.Errorf("%d entries of the message that loses, want %d", entries.Load(), want)
			}
			if got, want := f.effects(t), "paid a 1, paid b 1, paid c 1"; got != want {
				t.Errorf("effects %q, want %q", got, want)
			}
		})
	}
}

// A repeated batch begins with clean members: what fails in it is rolled back alone, and takes no other's work along.
func TestARepeatedBatchKeepsItsMembersApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var rounds, entries atomic.Int32
	paid, loses := f.effect("paid"), f.losing("40P01", 1, &entries)
	step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		switch {
		case in.Key == "a":
			rounds.Add(1)
			return paid(ctx, tx, in, emit)
		case in.Key == "z":
			return loses(ctx, tx, in, emit)
		case in.N == "1" && rounds.Load() > 1:
			in.Queue("SELECT 1/($1::integer - 1)", 1) // fails in the repetition
		default:
			in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", "queued "+in.N)
		}
		return nil
	}, nil)
	c := f.consumer(t, Options{BatchTime: time.Minute}, step)
	settle(t, c, act("a"), numbered("k", "1"), numbered("k", "2"), act("z"))
	if got, want := f.effects(t), "paid a 1, paid z 1, queued 2"; got != want {
		t.Errorf("effects %q, want %q; parked %q", got, want, f.parked(t))
	}
	if got, want := f.parked(t), "retrying action failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

// While a call of the handler still uses the connection, nothing of the connection is looked at: there is none here.
func TestAConflictBesideACallInProgress(t *testing.T) {
	t.Parallel()
	if isContested(nil, errors.Join(errTxInUse, &pgconn.PgError{Code: "40P01"})) {
		t.Error("the handler is to be entered again, and a call of it is in progress")
	}
}

// What a handler says itself has precedence over the conflict that it reports.
func TestAHandlersVerdictAboutALostRace(t *testing.T) {
	t.Parallel()
	for want, verdict := range map[string]func(error) error{
		"dead action terminal 1":   Terminal,
		"dead action parked 0":     Park,
		"retrying action failed 1": func(err error) error { return RetryAfter(err, time.Hour) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var entries atomic.Int32
			loses := f.losing("40P01", 100, &entries)
			step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				return verdict(loses(ctx, tx, in, emit))
			}, nil)
			handle(t, f.consumer(t, Options{}, step), act("k"))
			if got := f.parked(t); got != want || entries.Load() != 1 {
				t.Errorf("parked %q after %d entries, want %q after one", got, entries.Load(), want)
			}
		})
	}
}

// A statement beside open rows fails, and the error says what to do.
func TestOpenRowsAreExplained(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		rows, err := tx.Query(ctx, "SELECT generate_series(1, 10000)")
		if err != nil {
			return err
		}
		defer rows.Close()
		rows.Next()
		_, err = tx.Exec(ctx, "SELECT 1")
		return err
	}, nil))
	handle(t, c, act("k"))
	if got := f.texts(t, "SELECT error FROM {schema}.parked"); len(got) != 1 || !strings.Contains(got[0], "conn busy (the rows of an earlier query are still open") {
		t.Errorf("errors %q", got)
	}
}
