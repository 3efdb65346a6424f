package consumer

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A session that was opened while the database was read-only does not stay in the pool. One whose transaction the handler
// itself has made read-only does.
func TestASessionThatMayNotWriteLeavesThePool(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	service := pgtest.NewOutsider(t, f.pool, f.schema)
	pay := f.effect("paid")
	c := f.consumerOn(t, service.Pool, Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if in.Key == "reads" {
			_, err := tx.Exec(ctx, "SET TRANSACTION READ ONLY")
			return errors.Join(err, pay(ctx, tx, in, emit))
		}
		return pay(ctx, tx, in, emit)
	}, nil))
	service.Exec(t, "ALTER ROLE {role} SET default_transaction_read_only = on")
	if err := c.Handle(t.Context(), "pay", act("a")); !pg.IsAway(err) {
		t.Errorf("Handle of a read-only session = %v", err)
	}
	service.Exec(t, "ALTER ROLE {role} RESET default_transaction_read_only")
	handle(t, c, act("a"))
	before := service.Pool.Stat().NewConnsCount()
	handle(t, c, act("reads"))
	handle(t, c, act("b"))
	if got := service.Pool.Stat().NewConnsCount(); got != before {
		t.Errorf("%d connections were made for a handler that has made its transaction read-only", got-before)
	}
	if got, want := f.effects(t), "paid a 1, paid b 1"; got != want {
		t.Errorf("effects %q, want %q", got, want)
	}
}

// A handler cannot change a setting of the session, by which it would change what other handlers do. A function that does
// so fails one message for each session, and its session leaves the pool.
func TestASettingOfTheSessionIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(t, `CREATE FUNCTION {schema}.pollute() RETURNS text AS $$ SELECT set_config('search_path', 'nowhere', false) $$ LANGUAGE sql`)
	service := pgtest.NewOutsider(t, f.pool, f.schema)
	service.Exec(t, "ALTER ROLE {role} SET search_path = {schema}")
	config := service.Pool.Config()
	config.MaxConns = 1
	c := f.consumerOn(t, pgtest.PoolOf(t, config), Options{}, f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], _ Emit) error {
		statement := "INSERT INTO effect (what) VALUES ('paid')"
		switch in.Key {
		case "set":
			statement = "SET search_path = nowhere"
		case "function":
			statement = "SELECT " + f.schema + ".pollute()"
		case "queue":
			in.Queue("SELECT set_config('search_path', 'nowhere', false)")
		}
		_, err := tx.Exec(ctx, statement)
		return err
	}, nil))
	handle(t, c, act("set"), act("queue"), act("a"), act("function"), act("b"), act("c"))
	if got, want := strings.Join(f.texts(t, "SELECT key || ' ' || state FROM {schema}.inbox ORDER BY key"), ", "), "a done, b retrying, c done, function done, queue retrying, set retrying"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, text := range f.texts(t, "SELECT error FROM {schema}.parked WHERE key IN ('set', 'queue')") {
		if !strings.Contains(text, "write SET LOCAL") {
			t.Errorf("the error is %q", text)
		}
	}
}
