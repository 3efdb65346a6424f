package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

func (f *fixture) locate(t *testing.T, filter LocateFilter) (w InboxRows) {
	t.Helper()
	l, err := NewLocator(&Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginTxFunc(t.Context(), f.pool, oneSnapshot, func(tx pgx.Tx) error {
		w, err = l.Inbox(t.Context(), tx, filter)
		return err
	})
	if err != nil {
		t.Fatalf("Locate: %v", err)
	}
	return w
}

// located returns "step#n state attempts undo" and "state kind reason attempts".
func located(w InboxRows) string {
	var all []string
	for _, s := range w.Steps {
		all = append(all, fmt.Sprint(s.Step, "#", s.N, " ", s.State, " ", s.Attempts, " ", s.UndoAttempts))
	}
	for _, p := range w.Letters {
		all = append(all, fmt.Sprint(p.State, " ", p.Kind, " ", p.Reason, " ", p.Attempts))
	}
	return strings.Join(all, ", ")
}

// scripted fails in the way that the amount says.
func scripted(_ context.Context, _ pgx.Tx, in consumer.Message[payment], _ consumer.Emit) error {
	switch in.Body.Amount {
	case 11:
		return consumer.Terminal(errors.New("never"))
	case 12:
		panic("broken")
	}
	return nil
}

// A step is found wherever it stands, with what is parked of it.
func TestEveryStateOfAStep(t *testing.T) {
	t.Parallel()
	const ok, once, never = 1, 12, 11 // what scripted does
	pay := func(amount int) *message.Message { return newMessage("pay", "k", payment{amount}) }
	unpay := func(amount int) *message.Message { return newMessage("unpay", "k", payment{amount}) }
	for name, tt := range map[string]struct {
		arrives []*message.Message
		want    string
	}{
		"nothing":     {nil, ""},
		"done":        {[]*message.Message{pay(ok)}, "# done 1 0"},
		"retrying":    {[]*message.Message{pay(once)}, "# retrying 1 0, retrying action failed 1"},
		"dead":        {[]*message.Message{pay(never)}, "# dead 1 0, dead action terminal 1"},
		"void":        {[]*message.Message{unpay(ok)}, "# void 0 0"},
		"undoing":     {[]*message.Message{pay(ok), unpay(once)}, "# undoing 1 1, retrying compensation failed 1"},
		"undo-dead":   {[]*message.Message{pay(ok), unpay(never)}, "# undo-dead 1 1, dead compensation terminal 1"},
		"compensated": {[]*message.Message{pay(ok), unpay(ok)}, "# compensated 1 1"},
		"waits":       {[]*message.Message{pay(once), unpay(ok)}, "# retrying 1 0, retrying action failed 1, retrying compensation waits-for-action 0"},
		"reused":      {[]*message.Message{pay(ok), pay(2)}, "# done 1 0, dead action key-reused 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, consumer.Options{}, f.step(scripted, scripted))
			handle(t, c, tt.arrives...)
			handle(t, c, newMessage("pay", "kk", payment{never}))
			want := strings.ReplaceAll(tt.want, "# ", "process-payment# ")
			for _, scope := range []string{"tenant", ""} {
				if got := located(f.locate(t, LocateFilter{Scope: scope, Key: "k"})); got != want {
					t.Errorf("in scope %q: %s\nwant %s", scope, got, want)
				}
			}
			for _, none := range []LocateFilter{{Scope: "tenan", Key: "k"}, {Key: "K"}, {Scope: "tenant2", Key: "kk"}} {
				if got := located(f.locate(t, none)); got != "" {
					t.Errorf("%+v: %s", none, got)
				}
			}
		})
	}
}

// What is told of a saga is what the tables have, of every scope.
func TestWhatIsToldOfASaga(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, consumer.Options{}, f.step(scripted, scripted))
	first, second := newMessage("pay", "k", payment{11}), newMessage("pay", "k", payment{12})
	first.UUID = "no\x00uuid"
	second.Metadata.Set(outbox.HeaderKey, "k:process-payment#2")
	second.Metadata.Set(outbox.HeaderScope, "another")
	handle(t, c, first, second, saying(act("k"), "{"))
	f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity' WHERE state = 'retrying'")
	w := f.locate(t, LocateFilter{Key: "k"})
	if got, want := located(w), "process-payment# dead 1 0, process-payment#2 retrying 1 0, dead action terminal 1, retrying action failed 1"; got != want {
		t.Fatalf("located %s\nwant %s", got, want)
	}
	s, p := w.Steps[0], w.Letters[0]
	if s.Scope != "tenant" || s.Key != "k" || s.CreatedAt.IsZero() || s.UpdatedAt.Before(s.CreatedAt) || w.At.Before(s.UpdatedAt) || w.More {
		t.Errorf("step %+v at %s", s, w.At)
	}
	if p.Scope != "tenant" || p.Topic != "pay" || p.MessageID != first.UUID || p.Error != "never" || p.Payload != nil || p.Size == 0 || !p.DueAt.IsZero() {
		t.Errorf("parked %+v", p)
	}
	if w.Steps[1].Scope != "another" || w.Steps[1].N != "2" || !w.Letters[1].DueAt.IsZero() || !w.Horizon.IsZero() {
		t.Errorf("of another scope: %+v, %+v; swept before %s", w.Steps[1], w.Letters[1], w.Horizon)
	}
	f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp() + interval '1 h' WHERE state = 'retrying'")
	f.exec(t, "UPDATE {schema}.inbox_horizon SET swept_before = '2020-01-01'")
	w = f.locate(t, LocateFilter{Scope: "another", Key: "k"})
	if len(w.Steps) != 1 || len(w.Letters) != 1 || w.Letters[0].DueAt.Before(w.At.Add(50*time.Minute)) || w.Horizon.Year() < 2019 {
		t.Errorf("of the other scope: %+v", w)
	}
}

func TestLocateRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l, err := NewLocator(&Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Inbox(t.Context(), nil, LocateFilter{Scope: "tenant"}); err == nil {
		t.Error("without a key: nil error")
	}
	err = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := l.Inbox(t.Context(), tx, LocateFilter{Key: "k"})
		return err
	})
	if !errors.Is(err, errIsolation) {
		t.Errorf("in READ COMMITTED: %v", err)
	}
	if _, err := NewLocator(&Options{Schema: "no such"}); err == nil {
		t.Error("NewLocator of a schema with a blank = nil error")
	}
	l, _ = NewLocator(&Options{Schema: "nowhere"})
	err = pgx.BeginTxFunc(t.Context(), f.pool, oneSnapshot, func(tx pgx.Tx) error {
		_, err := l.Inbox(t.Context(), tx, LocateFilter{Key: "k"})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "migrated") {
		t.Errorf("in a schema that is not there: %v", err)
	}
}

// fillScopes stores steps of n sagas in each of so many scopes, and a dead letter
// of each.
func (f *fixture) fillScopes(t *testing.T, scopes, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO {schema}.inbox (scope, key, step, n, state, digest)
		SELECT 's' || s, 'k' || k, 'step', '', 'done', decode(repeat('00', 32), 'hex') FROM generate_series(1, $1::int) s, generate_series(1, $2::int) k`, scopes, n)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, due_at)
		SELECT 'dead', 'action', scope, key, step, n, 't', '', '{}', '{}', '', 'r', clock_timestamp() FROM {schema}.inbox`)
	f.exec(t, `INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, due_at)
		VALUES ('dead', 'unknown', 't', '', '{}', '{}', '', 'r', clock_timestamp())`)
}

// A saga is found by index, also without its scope, whatever the plan.
func TestASagaIsFoundByIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fillScopes(t, 20, 1000)
	pgtest.PrepareAll(t, preparable(newInboxQueries(f.schema)))
	for _, statistics := range []string{"SELECT 'fresh'", "ANALYZE {schema}.inbox, {schema}.parked"} {
		f.exec(t, statistics)
		q := newInboxQueries(f.schema)
		for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
			for _, args := range []string{"('', 'k7', 1000)", "('s7', 'k7', 1000)"} {
				for table, statement := range map[string]string{"inbox": q.locateSteps, "parked": q.locateParked} {
					plan := f.explain(t, mode, statement, args)
					if slices.Contains(plan, "Seq Scan on "+table) {
						t.Errorf("%s, %s, %s: %s in %q", statistics, mode, args, table, plan)
					}
				}
			}
		}
	}
	if w := f.locate(t, LocateFilter{Key: "k7"}); len(w.Steps) != 20 || len(w.Letters) != 20 || w.More {
		t.Errorf("%d steps and %d parked messages, more: %t; want 20 each", len(w.Steps), len(w.Letters), w.More)
	}
}

func TestLocateIsLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fillScopes(t, MaxList, 1)
	if w := f.locate(t, LocateFilter{Key: "k1"}); len(w.Steps) != MaxList || len(w.Letters) != MaxList || w.More {
		t.Errorf("%d steps and %d parked messages, more: %t", len(w.Steps), len(w.Letters), w.More)
	}
	f.exec(t, "INSERT INTO {schema}.inbox (scope, key, step, n, state) VALUES ('', 'k1', 'step', '', 'open')")
	if w := f.locate(t, LocateFilter{Key: "k1"}); len(w.Steps) != MaxList || len(w.Letters) != MaxList || !w.More {
		t.Errorf("%d steps and %d parked messages, more: %t", len(w.Steps), len(w.Letters), w.More)
	}
}

// SELECT on three tables is enough, and each is needed.
func TestALocatorGetsByWithItsGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := pgtest.Name()
	f.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() {
		if _, err := f.pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Errorf("drop role %s: %v", role, err)
		}
	})
	f.exec(t, "GRANT USAGE ON SCHEMA {schema} TO "+role)
	l, err := NewLocator(&Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	locate := func() error {
		return pgx.BeginTxFunc(t.Context(), f.pool, oneSnapshot, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role); err != nil {
				return err
			}
			_, err := l.Inbox(t.Context(), tx, LocateFilter{Key: "k"})
			return err
		})
	}
	for _, table := range []string{"inbox", "parked", "inbox_horizon"} {
		if err := locate(); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("without %s: %v", table, err)
		}
		f.exec(t, "GRANT SELECT ON {schema}."+table+" TO "+role)
	}
	if err := locate(); err != nil {
		t.Errorf("with all grants: %v", err)
	}
}
