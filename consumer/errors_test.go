package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// raise is a handler whose statement fails with an SQLSTATE, as long as there is
// one for the attempt.
func (f *fixture) raise(codes ...string) Handler[payment] {
	paid := f.effect("paid")
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if in.Attempt <= len(codes) {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE 'trouble' USING ERRCODE = '"+codes[in.Attempt-1]+"'; END $$")
			return fmt.Errorf("handler: %w", err)
		}
		return paid(ctx, tx, in, emit)
	}
}

// due returns how far off the only parked message is.
func (f *fixture) due(t *testing.T) time.Duration {
	t.Helper()
	var us int64
	err := f.pool.QueryRow(t.Context(), "SELECT (extract(epoch FROM due_at - last_at) * 1000000)::bigint FROM "+f.schema+".parked").Scan(&us)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

// What a person must decide is a dead letter at once, and has cost no attempt.
func TestPark(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		if in.Attempt == 1 && in.Key == "twice" {
			return errors.New("first")
		}
		return fmt.Errorf("over the limit: %w", Park(errors.New("amount")))
	}, nil))
	handle(t, c, act("k"))
	compareStored(t, stored{Row: "dead 0 0", Parked: "dead action parked 0"}, stored{Row: f.row(t), Parked: f.parked(t)})
	f.exec(t, "DELETE FROM {schema}.parked")
	f.exec(t, "DELETE FROM {schema}.inbox")
	handle(t, c, act("twice"))
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "dead 1 0", Parked: "dead action parked 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
	if got := f.texts(t, "SELECT error FROM {schema}.parked"); got[0] != "over the limit: amount" {
		t.Errorf("error %q", got)
	}
	if Park(nil) != nil || RetryAfter(nil, time.Second) != nil {
		t.Error("nil does not stay nil")
	}
}

// The wait that a handler asks for is the one it gets, within its limits, and the
// attempt counts.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		err         error
		least, most time.Duration
		parked      string
	}{
		"asked":          {RetryAfter(boom, time.Hour), time.Hour, time.Hour, "retrying action failed 1"},
		"asked, wrapped": {fmt.Errorf("gateway: %w", RetryAfter(boom, time.Minute)), time.Minute, time.Minute, "retrying action failed 1"},
		"outer counts":   {RetryAfter(RetryAfter(boom, time.Hour), time.Minute), time.Minute, time.Minute, "retrying action failed 1"},
		"too long":       {RetryAfter(boom, 1<<62), MaxRetryAfter, MaxRetryAfter, "retrying action failed 1"},
		"none":           {RetryAfter(boom, 0), 0, time.Second, "retrying action failed 1"},
		"negative":       {RetryAfter(boom, -time.Hour), 0, time.Second, "retrying action failed 1"},
		"terminal":       {Terminal(RetryAfter(boom, time.Hour)), 0, day, "dead action terminal 1"},
		"parked":         {RetryAfter(Park(boom), time.Hour), 0, day, "dead action parked 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return tt.err }, nil)
			step.RetryBase, step.RetryCap = time.Second, time.Minute
			handle(t, f.consumer(t, Options{}, step), act("k"))
			if got := f.parked(t); got != tt.parked {
				t.Errorf("parked %q, want %q", got, tt.parked)
			}
			const slack = time.Second // between two looks at the clock
			if got := f.due(t); got < tt.least-slack || got > tt.most+slack {
				t.Errorf("due in %s, want %s to %s", got, tt.least, tt.most)
			}
			if !errors.Is(tt.err, boom) {
				t.Error("the cause is gone")
			}
		})
	}
	f := newFixture(t)
	step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return RetryAfter(boom, time.Hour) }, nil)
	step.MaxAttempts = 1
	handle(t, f.consumer(t, Options{}, step), act("k"))
	if got := f.parked(t); got != "dead action attempts-exhausted 1" {
		t.Errorf("last attempt: %q", got)
	}
}

// A handler that lost against other transactions is entered again, soon. An ill
// server costs entries, and when they are used up, the reason says whose fault it
// was.
func TestDatabaseTrouble(t *testing.T) {
	t.Parallel()
	for code, reason := range map[string]string{
		"40001": "attempts-exhausted", "40P01": "attempts-exhausted", "22P05": "attempts-exhausted", "55P03": "attempts-exhausted",
		"53100": "database-unavailable", "53300": "database-unavailable", "57P01": "database-unavailable", "25006": "database-unavailable", "08006": "database-unavailable",
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			step := f.step(f.raise(code, code), nil)
			step.RetryBase, step.RetryCap, step.MaxAttempts = time.Hour, time.Hour, 2
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"))
			compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying action failed 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
			f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
			runParkedOnce(t, c)
			compareStored(t, stored{Row: "dead 2 0", Parked: "dead action " + reason + " 2"}, stored{Row: f.row(t), Parked: f.parked(t)})
		})
	}
}

func TestIsUnavailable(t *testing.T) {
	t.Parallel()
	lost := errors.Join(errConnLost, errors.New("conn closed"))
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("boom"), false},
		{lost, true},
		{errors.Join(errConnLost, context.DeadlineExceeded), false},
		{fmt.Errorf("handler: %w", io.ErrUnexpectedEOF), true},
		{&pgconn.PgError{Code: "57014"}, false},
		{&pgconn.PgError{Code: "57P03"}, true},
		{errors.Join(errConnLost, &pgconn.PgError{Code: "23505"}), false},
		{&pgconn.ConnectError{}, true},
	} {
		if got := isUnavailable(tt.err); got != tt.want {
			t.Errorf("isUnavailable(%v) = %t", tt.err, got)
		}
	}
}
