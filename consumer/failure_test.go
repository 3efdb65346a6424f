package consumer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// failing returns a handler that fails the first n times, after it has done
// its work.
func (f *fixture) failing(n int32, what string, entries *atomic.Int32) Handler[payment] {
	work := f.effect(what)
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if err := work(ctx, tx, in, emit); err != nil {
			return err
		}
		if entry := entries.Add(1); entry <= n {
			return fmt.Errorf("failure %d, attempt %d", entry, in.Attempt)
		}
		return nil
	}
}

func TestAFailedStepIsParkedAndRunsAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries, undoEntries atomic.Int32
	c := f.consumer(t, Options{}, f.step(f.failing(2, "paid", &entries), f.failing(1, "refunded", &undoEntries)))
	msg := act("k")
	msg.Metadata.Set("x-own", "\xff\x00")
	handle(t, c, msg, act("k"), act("k"))
	compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying action failed 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
	if got := f.texts(t, "SELECT error FROM {schema}.parked"); got[0] != "failure 1, attempt 1" {
		t.Errorf("kept error %q", got)
	}
	for i, want := range []stored{{Row: "retrying 2 0", Parked: "retrying action failed 2"}, {Row: "done 3 0"}} {
		if n := runParkedOnce(t, c); n != 1 {
			t.Fatalf("run %d: %d messages were due", i, n)
		}
		compareStored(t, want, stored{Row: f.row(t), Parked: f.parked(t)})
	}
	handle(t, c, undo("k"), undo("k"), act("k"))
	compareStored(t, stored{Row: "undoing 3 1", Parked: "retrying compensation failed 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "compensated 3 2"}, stored{Row: f.row(t), Parked: f.parked(t)})
	if got, want := f.effects(t), "paid k 1, refunded k 2"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

// The parked copy is the message as it came, byte for byte.
func TestAParkedMessageKeepsItsBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries atomic.Int32
	c := f.consumer(t, Options{}, f.step(f.failing(1, "paid", &entries), nil))
	msg := act("k")
	msg.Metadata.Set("x-own", "\xff\x00")
	msg.Metadata.Set(outbox.PropertyRedelivered, "no")
	handle(t, c, msg)
	rows, err := c.retrier.takeParked(t.Context(), 1, c.retrier.stepNames...)
	if err != nil || len(rows) != 1 {
		t.Fatalf("take parked = %v, %v", rows, err)
	}
	got := rows[0].message()
	delete(msg.Metadata, outbox.PropertyRedelivered)
	if got.UUID != msg.UUID || !bytes.Equal(got.Payload, msg.Payload) || fmt.Sprint(got.Metadata) != fmt.Sprint(msg.Metadata) {
		t.Errorf("parked %s %q %q, want %s %q %q", got.UUID, got.Metadata, got.Payload, msg.UUID, msg.Metadata, msg.Payload)
	}
}

func TestTheBudgetIsExact(t *testing.T) {
	t.Parallel()
	for _, budget := range []int{1, 2, 5} {
		for _, k := range []kind{action, compensation} {
			t.Run(fmt.Sprint(budget, " ", k), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				var entries atomic.Int32
				always := f.failing(1<<30, "x", &entries)
				step := f.step(always, nil)
				want := stored{Row: fmt.Sprintf("dead %d 0", budget), Parked: fmt.Sprintf("dead action attempts-exhausted %d", budget)}
				msg := act
				if k == compensation {
					step = f.step(f.effect("paid"), always)
					want = stored{Row: fmt.Sprintf("undo-dead 1 %d", budget), Parked: fmt.Sprintf("dead compensation attempts-exhausted %d", budget)}
					msg = undo
				}
				step.MaxAttempts = budget
				c := f.consumer(t, Options{}, step)
				if k == compensation {
					handle(t, c, act("k"))
				}
				for range budget + 3 {
					handle(t, c, msg("k"))
					runParkedOnce(t, c)
				}
				compareStored(t, want, stored{Row: f.row(t), Parked: f.parked(t)})
				if int(entries.Load()) != budget {
					t.Errorf("the handler was entered %d times, want %d", entries.Load(), budget)
				}
			})
		}
	}
}

func TestTerminalErrorsAndPanics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	crash := true
	c := f.consumer(t, Options{}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		switch {
		case in.Key == "terminal":
			return fmt.Errorf("wrapped: %w", Terminal(errors.New("hopeless\x00")))
		case crash:
			panic("boom")
		}
		return nil
	}, nil))
	handle(t, c, act("terminal"), act("panic"))
	if got, want := f.parked(t), "dead action terminal 1; retrying action failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	stacks := f.texts(t, "SELECT stack FROM {schema}.parked ORDER BY id")
	if stacks[0] != "" || !strings.Contains(stacks[1], "TestTerminalErrorsAndPanics") {
		t.Errorf("stacks %q", stacks)
	}
	crash = false
	runParkedOnce(t, c)
	if got := f.texts(t, "SELECT state FROM {schema}.inbox WHERE key = 'panic'"); got[0] != "done" {
		t.Errorf("state after the panic was over: %s", got[0])
	}
}

func TestAnInvalidEmittedMessageIsTerminal(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(func(_ context.Context, _ pgx.Tx, _ Message[payment], emit Emit) error {
		emit(outbox.Message{Topic: "", Step: "x"})
		return nil
	}, nil))
	handle(t, c, act("k"))
	if got, want := f.parked(t), "dead action emit-invalid 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

func TestAMessageThatCannotBeReadIsADeadLetter(t *testing.T) {
	t.Parallel()
	set := func(name, value string) func(*message.Message) {
		return func(m *message.Message) { m.Metadata.Set(name, value) }
	}
	body := func(s string) func(*message.Message) {
		return func(m *message.Message) { m.Payload = []byte(s) }
	}
	for _, tt := range []struct {
		name   string
		change func(*message.Message)
		want   Reason
	}{
		{"no key", func(m *message.Message) { delete(m.Metadata, outbox.HeaderKey) }, ReasonKeyMissing},
		{"empty key", set(outbox.HeaderKey, ""), ReasonKeyMissing},
		{"no step", set(outbox.HeaderKey, "k"), ReasonKeyMalformed},
		{"long key", set(outbox.HeaderKey, strings.Repeat("k", 256)+":s"), ReasonKeyMalformed},
		{"NUL in key", set(outbox.HeaderKey, "k\x00:s"), ReasonKeyMalformed},
		{"UTF-8 in key", set(outbox.HeaderKey, "\xff:s"), ReasonKeyMalformed},
		{"escape in key", set(outbox.HeaderKey, "\x1b[31m:s"), ReasonKeyMalformed},
		{"number for key", set(outbox.HeaderKey, "7"), ReasonKeyMalformed},
		{"no scope", func(m *message.Message) { delete(m.Metadata, outbox.HeaderScope) }, ReasonScopeMissing},
		{"long scope", set(outbox.HeaderScope, strings.Repeat("s", 256)), ReasonScopeMalformed},
		{"NUL in scope", set(outbox.HeaderScope, "a\x00"), ReasonScopeMalformed},
		{"no type", func(m *message.Message) { delete(m.Metadata, outbox.PropertyType) }, ReasonTypeMissing},
		{"unknown type", set(outbox.PropertyType, "\xff\x00'; DROP TABLE inbox"), ReasonTypeUnknown},
		{"empty body", body(""), ReasonUndecodable},
		{"nil body", func(m *message.Message) { m.Payload = nil }, ReasonUndecodable},
		{"truncated", body(`{"amount":`), ReasonUndecodable},
		{"wrong type", body(`{"amount":"x"}`), ReasonUndecodable},
		{"twice", body(`{"amount":1,"AMOUNT":999}`), ReasonUndecodable},
		{"huge number", body(`{"amount":1e400000}`), ReasonUndecodable},
		{"deep", body(strings.Repeat("[", 20_000)), ReasonUndecodable},
		{"NUL", body("\x00\xff"), ReasonUndecodable},
		{"large", body(`{"amount":1,"x":"` + strings.Repeat("x", 1000) + `"}`), ReasonTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{MaxPayload: 1000}, f.step(f.effect("paid"), nil))
			if tt.name == "deep" {
				c.receiver.maxPayload = 100_000
			}
			msg := act("k")
			msg.UUID = "id\x00\xff"
			tt.change(msg)
			if err := c.Handle(t.Context(), "pay", msg); err != nil {
				t.Fatalf("Handle: %v", err)
			}
			if got, want := f.parked(t), fmt.Sprintf("dead unknown %s 0", tt.want); got != want {
				t.Errorf("parked %q, want %q", got, want)
			}
			var id, payload []byte
			err := f.pool.QueryRow(t.Context(), "SELECT message_id, payload FROM "+f.schema+".parked").Scan(&id, &payload)
			if err != nil || string(id) != msg.UUID || !bytes.Equal(payload, msg.Payload) {
				t.Errorf("kept %q %q, %v; want %q %q", id, payload, err, msg.UUID, msg.Payload)
			}
			handle(t, c, act("k")) // the key is not used up
			if got, want := f.effects(t), "paid k 1"; got != want {
				t.Errorf("effects %q, want %q", got, want)
			}
		})
	}
}

func TestACompensationWaitsForAParkedAction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries atomic.Int32
	c := f.consumer(t, Options{}, f.step(f.failing(2, "paid", &entries), f.effect("refunded")))
	handle(t, c, act("k"), undo("k"), undo("k"))
	if got, want := f.parked(t), "retrying action failed 1; retrying compensation waits-for-action 0"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	for range 6 {
		runParkedOnce(t, c)
	}
	compareStored(t, stored{Row: "compensated 3 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
	if got, want := f.effects(t), "paid k 1, refunded k 2"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

func TestACompensationOfADeadActionIsADeadLetterToo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
		return Terminal(errors.New("hopeless"))
	}, f.effect("refunded")))
	handle(t, c, act("k"), undo("k"))
	compareStored(t, stored{Row: "dead 1 0", Parked: "dead action terminal 1; dead compensation action-dead 0"}, stored{Row: f.row(t), Parked: f.parked(t)})
}

func TestCancelParkedTurnsAFailedActionVoid(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprint("terminal ", terminal), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
				if terminal {
					return Terminal(errors.New("hopeless"))
				}
				return errors.New("later")
			}, f.effect("refunded"))
			step.CancelParked = true
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"), undo("k"), act("k"))
			compareStored(t, stored{Row: "void 1 0"}, stored{Row: f.row(t), Parked: f.parked(t)})
			if n := runParkedOnce(t, c); n != 0 || f.effects(t) != "" {
				t.Errorf("%d parked messages ran, effects %q", n, f.effects(t))
			}
		})
	}
}

// A lost connection, and with it the transaction, is an attempt like any other.
func TestALostConnectionParksTheMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	broken := true
	paid := f.effect("paid")
	c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if err := paid(ctx, tx, in, emit); err != nil || !broken {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return err
	}, nil))
	handle(t, c, act("k"))
	compareStored(t, stored{Row: "retrying 1 0", Parked: "retrying action failed 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
	broken = false
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "done 2 0", Effects: "paid k 1"}, stored{Row: f.row(t), Effects: f.effects(t)})
}

// Delivery A loses its connection in the handler, and before it can record
// that, delivery B of the same message fails and is parked. Both entries count.
func TestALostEntryCountsAlsoWhenAnotherDeliveryWasParkedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var c *Consumer
	var entries atomic.Int32
	c = f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		if entries.Add(1) == 1 {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			handle(t, c, act("k")) // B
			return err
		}
		return errors.New("no")
	}, nil))
	handle(t, c, act("k")) // A
	if got, want := f.parked(t), "retrying action failed 2"; got != want || entries.Load() != 2 {
		t.Errorf("%d entries, parked %q; want 2, %q", entries.Load(), got, want)
	}
}

func TestAHandlerOverItsTimeoutIsParked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	}, nil)
	step.Timeout = 50 * time.Millisecond
	c := f.consumer(t, Options{}, step)
	handle(t, c, act("k"))
	if got, want := f.parked(t), "retrying action failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

// A server ignores a cancel request that arrives before the statement begins. It ends the statement once the connection
// is cut, so that the step's row is free for the next attempt.
func TestAStatementEndsAlthoughItsCancelRequestIsLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var lost atomic.Bool
	config := pgtest.DirectConfig(t)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &cancelLoser{Conn: conn, lost: &lost}, err
	}
	f.consumersPool(t, config)
	step := f.step(func(ctx context.Context, tx pgx.Tx, _ Message[payment], _ Emit) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	}, nil)
	step.Timeout = 50 * time.Millisecond
	handle(t, f.consumer(t, Options{}, step), act("k"))
	if got, want := f.parked(t), "retrying action failed 1"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	if !lost.Load() {
		t.Error("no cancel request was lost")
	}
}

// Each transaction that enters a handler, and each one without a handler, has limits: PostgreSQL ends the session of a
// process that hangs, and the statement of a process that is gone.
func TestTransactionsOfStepsAreLimited(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		check time.Duration
		want  string
	}{
		{0, "40s 1s 2"}, {250 * time.Millisecond, "40s 250ms 2"}, {-1, "40s 0 2"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var mu sync.Mutex
			var limits []string
			c := f.consumer(t, Options{ConnectionCheck: tt.check}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
				var limit string
				err := tx.QueryRow(ctx, "SELECT current_setting('idle_in_transaction_session_timeout') || ' ' || current_setting('client_connection_check_interval') || ' ' || current_setting('tcp_keepalives_idle')").Scan(&limit)
				mu.Lock()
				defer mu.Unlock()
				limits = append(limits, limit)
				if err == nil && in.Attempt == 1 && in.Key == "alone" {
					err = errors.New("once")
				}
				return err
			}, nil))
			handle(t, c, act("alone"))          // by claimNew
			runParkedOnce(t, c)                 // by limitIdle and lockStep
			handle(t, c, sent(day, act("old"))) // by openClaim
			settle(t, c, act("a"), act("b"))    // by limitIdle, claimMany and openClaims
			want := slices.Repeat([]string{tt.want}, 5)
			if diff := cmp.Diff(want, limits); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			got := ""
			err := c.executor.database.inTransaction(t.Context(), func(tx pgx.Tx, _ *pgx.Batch) error {
				return tx.QueryRow(t.Context(), "SELECT current_setting('idle_in_transaction_session_timeout') || ' ' || current_setting('client_connection_check_interval') || ' ' || current_setting('tcp_keepalives_idle')").Scan(&got)
			})
			if want := strings.Replace(tt.want, "40s", "10s", 1); err != nil || got != want {
				t.Errorf("in a transaction without a handler: %q, %v; want %q", got, err, want)
			}
		})
	}
}

// A cancelLoser is a connection to a server. It loses the first cancel request of all connections with the same lost.
type cancelLoser struct {
	net.Conn
	lost *atomic.Bool
}

// cancelCode is the number that PostgreSQL's protocol puts behind the length of a cancel request.
const cancelCode = 80877102

func (c *cancelLoser) Write(p []byte) (int, error) {
	if len(p) >= 8 && binary.BigEndian.Uint32(p[4:]) == cancelCode && c.lost.CompareAndSwap(false, true) {
		return len(p), c.Close()
	}
	return c.Conn.Write(p)
}

func TestWhatANewerBinaryParkedBecomesADeadLetterNotALoop(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var entries atomic.Int32
	newer := f.consumer(t, Options{}, f.step(f.failing(1, "paid", &entries), nil))
	handle(t, newer, act("k"))
	step := f.step(f.effect("paid"), nil)
	step.Action.Type = "pay.v0"
	older := f.consumer(t, Options{}, step)
	runParkedOnce(t, older)
	compareStored(t, stored{Row: "dead 1 0", Parked: "dead action type-unknown 1"}, stored{Row: f.row(t), Parked: f.parked(t)})
}

// Logs name steps and message ids, never keys or payloads.
func TestLogsHoldNoKeysAndNoPayloads(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var log bytes.Buffer
	step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error { return errors.New("no") }, nil)
	step.MaxAttempts = 2
	c := f.consumer(t, Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))}, step)
	handle(t, c, newMessage("pay", "canary-key", payment{918273645}))
	runParkedOnce(t, c)
	for _, canary := range []string{"canary-key", "918273645"} {
		if strings.Contains(log.String(), canary) {
			t.Errorf("the log holds %s:\n%s", canary, log.String())
		}
	}
	if !strings.Contains(log.String(), "dead letter") {
		t.Errorf("the dead letter is not logged:\n%s", log.String())
	}
}
