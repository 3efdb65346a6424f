package consumer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/plantest"
	"github.com/sagamill/sagamill/internal/txguard"
)

// fillTables adds n rows of each state to the inbox, and n parked messages of each kind.
func fillTables(t *testing.T, s *plantest.Schema, n int) {
	t.Helper()
	s.Exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, attempts, digest, undo_digest, updated_at)
		SELECT 's', concat('k', i), step, '', state, 1, sha256('x'), CASE WHEN state = 'undoing' THEN sha256('x') END,
			clock_timestamp() - age::interval
		FROM (SELECT (SELECT count(*) FROM {schema}.inbox) + i AS i FROM generate_series(1, $1::int) i) numbered,
			(VALUES ('old', 'done', '60 days'), ('pay', 'done', '1 s'), ('due', 'retrying', '1 s'), ('late', 'retrying', '1 s'),
				('open', 'open', '1 s'), ('dead', 'dead', '60 days')) k (step, state, age)`, n)
	s.Exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
			reason, attempts, due_at)
		SELECT state, kind, scope, CASE WHEN scope IS NOT NULL THEN concat('k', i) END, step, CASE WHEN scope IS NOT NULL THEN '' END, 'pay', concat('m', i)::bytea, '{}', '{}', 'x',
			'failed', 1, clock_timestamp() + due::interval
		FROM (SELECT (SELECT count(*) FROM {schema}.parked) + i AS i FROM generate_series(1, $1::int) i) numbered,
			(VALUES ('retrying', 'action', 's', 'due', '-1 s'), ('retrying', 'action', 's', 'late', '1 hour'),
				('retrying', 'unknown', null, null, '1 hour'), ('dead', 'action', 's', 'dead', '0')) k (state, kind, scope, step, due)`, n)
}

// argumentsOf returns arguments for the statements of the package.
func argumentsOf(t *testing.T, s *plantest.Schema, work int) map[string][]any {
	t.Helper()
	digest := sha256.Sum256([]byte("x"))
	id := func(step string) (id int64) {
		t.Helper()
		id, err := strconv.ParseInt(s.Texts(t, "SELECT id::text FROM {schema}.parked WHERE step = $1 ORDER BY id LIMIT 1", step)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	unknown, err := strconv.ParseInt(s.Texts(t, "SELECT id::text FROM {schema}.parked WHERE kind = 'unknown' ORDER BY id LIMIT 1")[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	identity := func(step string, more ...any) []any { return append([]any{"s", "k7", step, ""}, more...) }
	column := func(value string, number bool) (all []string) {
		for i := range work {
			if number {
				value = fmt.Sprint("k", i+1)
			}
			all = append(all, value)
		}
		return all
	}
	columns := func(step string) []any {
		return []any{column("s", false), column("", true), column(step, false), column(`""`, false)}
	}
	month := time.Now().Add(-30 * 24 * time.Hour)
	due, late, dead := id("due"), id("late"), id("dead")
	return map[string][]any{
		"openClaim":         identity("pay", "1000"),
		"lockMany":          columns("pay"),
		"unclaim":           columns("pay"),
		"reopen":            identity("pay", digest[:], 1, "3"),
		"readBehind":        columns("late"),
		"readAttempts":      identity("pay"),
		"lockStep":          identity("pay"),
		"tryLockStep":       identity("pay"),
		"moveStep":          identity("pay", "done", 1, 0, nil, nil),
		"countCompensation": identity("pay", 1),
		"nextDue":           nil,
		"takeParked":        {[]string{"due"}, work, 1000, []string{}, []string{"pay"}},
		"lockParked":        {due, 1, 0},
		"handBack":          {due, 1, 0, 1000},
		"deleteParked":      {due},
		"cancelParked":      identity("late"),
		"readNotDone":       identity("late", "retrying", []byte("h")),
		"repark":            {late, "retrying", "failed", "e", "", 1, 1000},
		"countParked":       identity("late", "action"),
		"nameParked":        {unknown, 1, "action", "s", "named", "late", "", []byte("m"), "{}", "{}", []byte("x"), nil},
		"refuseParked":      {unknown, 1, "r", "e", "", 1},
		"yieldParked":       append([]any{unknown, 1, "action", digest[:], "r", "e"}, identity("late")...),
		"readStats":         {work},
		"readDoubt":         {due, 1000, 1000},
		"readOther":         identity("late", "action", digest[:]),
		"leaseParked":       {due, 1000},
		"setDoubt":          {dead, true, 0, false},
		"postpone":          {due, 1000, 1000},
		"hasTooOld":         identity("dead", "action", "too-old", []byte("x")),
		"findOld":           {"(0,0)", "(4,0)", month},
		"removeOld":         {"(0,0)", "(4,0)", month, 0},
	}
}

// The consumer's statements are planned once, for whatever arguments, and perhaps while the tables are empty. Such a
// plan must be as good for full tables: until they are analyzed, each message would otherwise cost a walk past all others.
func TestPlansOfEmptyTablesAreGoodForFullOnes(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const work = 20
	(&plantest.Suite{
		Queries: func(schema string) []any {
			return []any{newQueries(schema, txguard.DefaultConnectionCheck), newEffectQueries(schema), newRetentionQueries(schema)}
		},
		Settings: map[string]string{
			pg.PlanByIndex: "nextDue takeParked nameParked findOld removeOld readStats",
			pg.PlanAnew: `lockParked handBack deleteParked cancelParked readNotDone repark countParked refuseParked yieldParked readBehind
				readDoubt readOther leaseParked setDoubt postpone hasTooOld unclaim`,
		},
		OnlyNew: map[string]string{
			"finds rows of the inbox by their primary key, in each delivery": `openClaim lockMany reopen lockStep tryLockStep
				moveStep readAttempts countCompensation`,
		},
		Excepted: map[string]string{
			"inserts: the unique index finds a conflict": "claimOne claimNew claimMany claimStep countAction park bury leaseDelivery",
			"reads no table":             "limitIdle findHidden",
			"reads the row of a horizon": "openClaims planSweep raiseHorizon readHorizon",
		},
		Tables: []string{"inbox", "parked"},
		Work:   work,
		Grow:   fillTables,
		Arguments: func(t *testing.T, s *plantest.Schema) map[string][]any {
			return argumentsOf(t, s, work)
		},
	}).Run(t)
}

// A consumer whose sessions have planned their statements while few messages were parked reads few of the many that are
// parked later: when it parks a message, cancels or retries it, looks for the next one, and sweeps the inbox.
func TestAConsumerOfAnEmptyTableReadsFewParkedMessages(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const rounds, many = 12, 20_000 // a session plans a statement for each of five executions
	s := plantest.New(t)
	own, read := plantest.Sessions(t, s.Pool, s.Name)
	f := &fixture{pool: s.Pool, schema: s.Name, sub: newQueueSubscriber()}
	fails := true
	step := f.step(func(context.Context, pgx.Tx, Message[payment], Emit) error {
		if fails {
			return errors.New("no")
		}
		return nil
	}, func(context.Context, pgx.Tx, Message[payment], Emit) error { return nil })
	step.Ordered, step.CancelParked = true, true
	c := f.consumerOn(t, own, Options{}, step)
	sweeper, err := NewSweeper(own, &SweeperOptions{Schema: f.schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	round := func(n int) {
		t.Helper()
		fails = true
		retried, cancelled := fmt.Sprint("retried ", n), fmt.Sprint("cancelled ", n)
		handle(t, c, sent(0, act(retried)), sent(0, act(cancelled)), sent(0, undo(cancelled))) // the last one cancels
		for _, fails = range []bool{true, false} {
			if ran := runParkedOnce(t, c); ran != 1 {
				t.Fatalf("round %d: %d retries, want 1", n, ran)
			}
		}
		if _, err := c.retrier.nextDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.exec(t, "UPDATE {schema}.inbox SET updated_at = updated_at - interval '60 days'")
		if _, err := sweeper.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for n := range rounds {
		round(n)
	}
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT 'retrying', 'action', 's', concat('k', i), 'process-payment', '', 'pay', '', '{}', '{}', 'x', 'failed', clock_timestamp() + interval '1 hour'
		FROM generate_series(1, $1::int) i`, many)
	round(rounds)
	if read := read("parked"); read > many/2 {
		t.Errorf("the consumer has read %d parked messages, and %d were parked", read, many)
	}
}
