package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// A roleFixture is a service whose handlers set the role of a tenant. The tenants see none of sagamill's rows.
type roleFixture struct {
	*fixture
	service *pgtest.Outsider
	tenants []string
}

func newRoleFixture(t *testing.T) *roleFixture {
	t.Helper()
	f := newFixture(t)
	f.exec(t, "ALTER TABLE {schema}.effect ADD COLUMN by text NOT NULL DEFAULT current_user")
	r := &roleFixture{fixture: f, tenants: []string{pgtest.NewRole(t, f.pool), pgtest.NewRole(t, f.pool)}}
	r.service = pgtest.NewOutsider(t, f.pool, f.schema, r.tenants...)
	for _, tenant := range r.tenants {
		r.service.Exec(t, "GRANT USAGE ON SCHEMA {schema} TO "+tenant+"; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO "+tenant+"; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO "+tenant)
	}
	r.service.Exec(t, "ALTER ROLE {role} BYPASSRLS")
	r.service.Hide(t, "inbox", "inbox_horizon", "parked", "outbox") // from the tenants
	return r
}

func (f *roleFixture) consumer(t *testing.T, opts Options, steps ...Step) *Consumer {
	t.Helper()
	return f.consumerOn(t, f.service.Pool, opts, steps...)
}

// asTenant returns a handler that works as the tenant whose number is the amount, and emits a message.
func (f *roleFixture) asTenant(queued bool, fails func(key string) bool) Handler[payment] {
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if in.Body.Amount < len(f.tenants) {
			if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+f.tenants[in.Body.Amount]); err != nil {
				return err
			}
		}
		insert := "INSERT INTO " + f.schema + ".effect (what) VALUES ($1)"
		if queued {
			in.Queue(insert, in.Key)
		} else if _, err := tx.Exec(ctx, insert, in.Key); err != nil {
			return err
		}
		if fails != nil && fails(in.Key) {
			return errors.New("not yet")
		}
		emit(outbox.Message{Topic: "paid", Step: "ship", Payload: []byte("{}")})
		return nil
	}
}

// work returns "key by tenant" of each effect; the service is "by 2".
func (f *roleFixture) work(t *testing.T) []string {
	t.Helper()
	roles := append(slices.Clone(f.tenants), f.service.Role)
	return f.texts(t, "SELECT what || ' by ' || array_position($1::text[], by) - 1 FROM {schema}.effect ORDER BY 1", roles)
}

// A handler may set a role for its own statements, and need not undo it. Sagamill's statements, and the next handlers of
// a batch with what they queue, run as the session.
func TestARoleOfAHandlerEndsWithIt(t *testing.T) {
	t.Parallel()
	for _, queued := range []bool{false, true} {
		t.Run(fmt.Sprint("queued ", queued), func(t *testing.T) {
			t.Parallel()
			t.Run("alone", func(t *testing.T) {
				t.Parallel()
				f := newRoleFixture(t)
				c := f.consumer(t, Options{}, f.step(f.asTenant(queued, nil), f.asTenant(queued, nil)))
				handle(t, c, newMessage("pay", "a", payment{0}), newMessage("unpay", "a", payment{1}))
				f.check(t, "compensated 1 1", []string{"a by 0", "a by 1"})
			})
			t.Run("a retry", func(t *testing.T) {
				t.Parallel()
				f := newRoleFixture(t)
				failed := false
				fails := func(string) bool { defer func() { failed = true }(); return !failed }
				c := f.consumer(t, Options{}, f.step(f.asTenant(queued, fails), nil))
				handle(t, c, newMessage("pay", "a", payment{0}))
				for runParkedOnce(t, c) == 0 {
				}
				f.check(t, "done 2 0", []string{"a by 0"})
			})
			t.Run("a batch", func(t *testing.T) {
				t.Parallel()
				f := newRoleFixture(t)
				c := f.consumer(t, Options{}, f.step(f.asTenant(queued, func(key string) bool { return key == "c" }), nil))
				handle(t, c, newMessage("pay", "b", payment{2}))
				handleBatch(t, c, newMessage("pay", "a", payment{0}), newMessage("pay", "b", payment{2}), newMessage("pay", "c", payment{1}),
					newMessage("pay", "d", payment{2}), newMessage("pay", "e", payment{1}), newMessage("pay", "f", payment{2}))
				f.check(t, "done 1 0; done 1 0; retrying 1 0; done 1 0; done 1 0; done 1 0", []string{"a by 0", "b by 2", "d by 2", "e by 1", "f by 2"})
			})
		})
	}
}

// check compares the rows of the inbox, in the order of keys, and the work.
func (f *roleFixture) check(t *testing.T, rows string, work []string) {
	t.Helper()
	if got := strings.Join(f.texts(t, "SELECT concat_ws(' ', state, attempts, undo_attempts) FROM {schema}.inbox ORDER BY key"), "; "); got != rows {
		t.Errorf("the inbox says %q, want %q; parked: %v", got, rows, f.texts(t, "SELECT error FROM {schema}.parked"))
	}
	if got := f.work(t); !slices.Equal(got, work) {
		t.Errorf("work %q, want %q", got, work)
	}
	if n := f.texts(t, "SELECT count(*)::text FROM {schema}.outbox"); n[0] != fmt.Sprint(len(work)) {
		t.Errorf("%s messages in the outbox, want %d", n[0], len(work))
	}
}

// handleBatch handles msgs in one transaction.
func handleBatch(t *testing.T, c *Consumer, msgs ...*message.Message) {
	t.Helper()
	var attempts []*attempt
	for _, msg := range msgs {
		a, rejected := readAttempt(c, "pay", msg)
		if rejected != nil {
			t.Fatal(rejected)
		}
		a.origin = boardEntry{topic: "pay", msg: msg}
		attempts = append(attempts, a)
	}
	if later := c.executor.executeLoad(t.Context(), t.Context(), attempts); len(later) > 0 {
		t.Errorf("%d of the batch were left", len(later))
	}
}

// A handler that removes the row of its step, or its parked copy, commits nothing: the failure says why.
func TestAHandlerThatRemovesItsRowCommitsNothing(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"inbox", "parked"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			attempt := 0
			pay := f.effect("paid")
			c := f.consumer(t, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				switch attempt++; attempt {
				case 1:
					return errors.New("not yet")
				case 2:
					if _, err := tx.Exec(ctx, "DELETE FROM "+f.schema+"."+table); err != nil {
						return err
					}
				}
				return pay(ctx, tx, in, emit)
			}, nil))
			handle(t, c, act("a"))
			for attempt < 2 {
				runParkedOnce(t, c)
			}
			compareStored(t, stored{Row: "retrying 2 0", Parked: "retrying action failed 2"}, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
			if text := f.texts(t, "SELECT error FROM {schema}.parked"); !strings.Contains(text[0], "the handler has removed") {
				t.Errorf("the error is %q", text)
			}
			for attempt < 3 {
				runParkedOnce(t, c)
			}
			compareStored(t, stored{Row: "done 3 0", Effects: "paid a 1"}, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
		})
	}
}

// A claim whose row is hidden is an error that names the table, whatever the policy lets through, and runs nothing.
func TestAHiddenRowIsNoAbsentRow(t *testing.T) {
	t.Parallel()
	for table, policy := range map[string]string{
		"inbox":  "CREATE POLICY p ON {schema}.inbox USING (state = 'done')", // as a claim inserts it
		"parked": "",
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			service := pgtest.NewOutsider(t, f.pool, f.schema)
			pay := f.effect("paid")
			fail := true
			c := f.consumerOn(t, service.Pool, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				if fail {
					return errors.New("not yet")
				}
				return pay(ctx, tx, in, emit)
			}, nil))
			handle(t, c, act("a"))
			fail = false
			if policy != "" {
				service.Exec(t, policy)
			}
			service.Hide(t, table)
			if table == "inbox" {
				if err := c.Handle(t.Context(), "pay", sent(day, act("a"))); !errors.Is(err, pg.ErrHidden) || !strings.Contains(err.Error(), "inbox") {
					t.Errorf("Handle = %v, want an error that names the inbox", err)
				}
			} else if _, err := c.retrier.takeParked(t.Context(), 1, "process-payment"); !isDenied(err, "parked") {
				t.Errorf("taking a parked message: %v", err)
			}
			if got := f.effects(t); got != "" {
				t.Errorf("effects %q", got)
			}
			service.Show(t, table)
			for runParkedOnce(t, c) == 0 {
			}
			compareStored(t, stored{Row: "done 2 0", Effects: "paid a 1"}, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
		})
	}
}

// isDenied reports whether err names table as one with row-level security.
func isDenied(err error, table string) bool {
	text := fmt.Sprint(err)
	return strings.Contains(text, "42501") && strings.Contains(text, table)
}
