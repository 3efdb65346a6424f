package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// earlier returns "reason: error" of the failures that the parked messages have had before their last ones.
func (f *fixture) earlier(t *testing.T) string {
	t.Helper()
	return strings.Join(f.texts(t, `SELECT concat(e.failure->>'reason', ': ', e.failure->>'error')
		FROM {schema}.parked, jsonb_array_elements(earlier_failures) WITH ORDINALITY AS e (failure, place) ORDER BY id, place`), "; ")
}

// Of many failures a message keeps the first one and the newest. Nothing of them changes when they grow older.
func TestAMessageKeepsItsEarlierFailures(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	step := f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		if in.Attempt == 2 {
			panic("second")
		}
		return fmt.Errorf("failure %d %s", in.Attempt, strings.Repeat("é", 2000))
	}, nil)
	step.MaxAttempts = 12
	c := f.consumer(t, Options{}, step)
	handle(t, c, act("k"))
	if got := f.earlier(t); got != "" {
		t.Errorf("after the first failure there are earlier ones: %s", got)
	}
	runParkedOnce(t, c)
	at := f.texts(t, "SELECT earlier_failures #>> '{0,at}' FROM {schema}.parked")
	for range 10 {
		runParkedOnce(t, c)
	}
	cut := func(attempt int) string {
		text := fmt.Sprintf("failure %d ", attempt)
		return fmt.Sprint("failed: ", text, strings.Repeat("é", 1000-len(text)))
	}
	want := cut(1)
	for attempt := 4; attempt <= 11; attempt++ {
		want += "; " + cut(attempt)
	}
	if diff := cmp.Diff(want, f.earlier(t)); diff != "" {
		t.Errorf("earlier failures, -want +got:\n%s", diff)
	}
	if got, want := f.parked(t), "dead action attempts-exhausted 12"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
	if now := f.texts(t, "SELECT earlier_failures #>> '{0,at}' FROM {schema}.parked"); now[0] != at[0] {
		t.Errorf("the first failure was at %s and is at %s", at, now)
	}
}

func TestAnEarlierFailureKeepsItsStack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		if in.Attempt == 1 {
			panic("boom")
		}
		return errors.New("no")
	}, nil))
	handle(t, c, act("k"))
	f.exec(t, "UPDATE {schema}.parked SET last_at = 'infinity'") // as a person might
	runParkedOnce(t, c)
	runParkedOnce(t, c)
	got := f.texts(t, `SELECT (length(f->>'stack') BETWEEN 100 AND 4000 AND f->>'stack' LIKE '%TestAnEarlierFailureKeepsItsStack%' AND f->'at' = 'null')::text
		FROM {schema}.parked, jsonb_array_elements(earlier_failures) f WHERE f->>'error' LIKE '%boom%'`)
	if len(got) != 1 || got[0] != "true" {
		t.Errorf("the panic has %q", got)
	}
	if got, want := f.texts(t, "SELECT earlier_failures #>> '{1,stack}' FROM {schema}.parked"), ""; got[0] != want {
		t.Errorf("an error has the stack %q", got)
	}
}

// A message that waits has not failed. An Effect that is being called, or waits for the end of a call, still has the
// error of its last failure, which counts once.
func TestWaitingIsNoFailure(t *testing.T) {
	t.Parallel()
	t.Run("for its action", func(t *testing.T) {
		t.Parallel()
		f := newLetterFixture(t)
		handle(t, f.c, act("k"), undo("k"))
		for range 2 { // the action fails again, and its compensation waits for it and dies again
			f.redriveID(t, 1, 2)
			for range 2 {
				f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
				runParkedOnce(t, f.c)
			}
		}
		compareStored(t, stored{Row: "dead 1 0", Parked: "dead action terminal 1; dead compensation action-dead 0"}, stored{Row: f.row(t), Parked: f.parked(t)})
		if got, want := f.earlier(t), "terminal: paid went wrong; terminal: paid went wrong"; got != want {
			t.Errorf("earlier failures %q, want those of the action alone", got)
		}
	})
	t.Run("for a call", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		p := newProvider(t, false)
		p.refuse = []string{"first error", "second error", "third error"}
		c := f.consumer(t, Options{}, f.effectStep(p.url, false))
		handle(t, c, act("k"))
		for range 2 {
			f.pass(t)
			runParkedOnce(t, c)
		}
		got := strings.Split(f.earlier(t), "; ")
		if len(got) != 2 || !strings.Contains(got[0], "failed: ") || !strings.Contains(got[0], "first error") || !strings.Contains(got[1], "failed: ") || !strings.Contains(got[1], "second error") {
			t.Errorf("earlier failures %q, want the first and the second", got)
		}
	})
	t.Run("until a call has settled", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		p := newProvider(t, false)
		p.refuse = []string{"first error"}
		step := f.effectStep(p.url, true)
		step.Settle = time.Hour
		c := f.consumer(t, Options{}, step)
		handle(t, c, act("k"))
		for range 3 {
			f.exec(t, "UPDATE {schema}.parked SET due_at = clock_timestamp()")
			runParkedOnce(t, c)
		}
		if got, want := f.doubts(t), "retrying unsettled 1?"; got != want {
			t.Fatalf("parked %q, want %q", got, want)
		}
		if _, err := f.desk(t).Bury(t.Context(), f.letterID(t)); err != nil {
			t.Fatal(err)
		}
		f.redrive(t, nil)
		p.refuse = []string{"second error"}
		f.pass(t)
		runParkedOnce(t, c)
		if got := f.earlier(t); !strings.HasPrefix(got, "failed: ") || !strings.Contains(got, "first error") || strings.Contains(got, "; ") {
			t.Errorf("earlier failures %q, want the first one alone", got)
		}
	})
}

// Each statement that overwrites a failure keeps it.
func TestEachStatementKeepsTheFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	sql := c.settler.sql
	columns := func(key, text string, more ...any) []any {
		a := newAttempt(&received{Delivery: Delivery{Scope: "tenant", Key: key, Step: "process-payment", Topic: "pay", ID: "id"}, route: route{kind: action}})
		return append(a.parkedColumns(ReasonFailed, text, "", 1), more...)
	}
	f.exec(t, sql.park, columns("a", "park", 0)...)
	f.exec(t, sql.park, columns("a", "park again", 0)...)
	f.exec(t, sql.repark, f.newestParked(t), retrying, ReasonFailed, "repark", "", 2, 0)
	const unread = "INSERT INTO {schema}.parked (state, kind, topic, message_id, header_names, header_values, payload, reason, error, due_at) VALUES ('retrying', 'unknown', 't', 'm', '{}', '{}', 'p', 'undecodable', 'unread', now())"
	f.exec(t, unread)
	f.exec(t, sql.refuseParked, f.newestParked(t), 0, ReasonUndecodable, "refused", "", 0)
	f.exec(t, unread)
	f.exec(t, sql.yieldParked, f.newestParked(t), 0, action, []byte("other"), ReasonKeyReused, "yielded", "tenant", "a", "process-payment", "")
	if got, want := f.earlier(t), "failed: park; failed: park again; undecodable: unread; undecodable: unread"; got != want {
		t.Errorf("earlier failures %q, want %q", got, want)
	}
	if got, want := f.parked(t), "retrying action failed 2; dead unknown undecodable 0; dead action key-reused 0"; got != want {
		t.Errorf("parked %q, want %q", got, want)
	}
}

func (f *fixture) newestParked(t *testing.T) (id int64) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), "SELECT max(id) FROM "+f.schema+".parked").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}
