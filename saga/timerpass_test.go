package saga

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// Instances that are due, but locked or of a version that is not registered here, do not make an orchestrator
// read the table over and over.
func TestWhatIsDueElsewhereIsNotPolledHot(t *testing.T) {
	t.Parallel()
	const poll, passes = 100 * time.Millisecond, 4
	for name, hide := range map[string]string{
		"locked":  "SELECT FROM {schema}.saga FOR UPDATE",
		"unknown": "UPDATE {schema}.saga SET version = 2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, schema := pgtest.Schema(t)
			d := Must(Define("trip", 1, Step[struct{}]{Name: "book", Do: Remote[struct{}, any, any]("book", nil, nil), Deadline: time.Millisecond}))
			o, err := NewOrchestrator(db, nil, []Plan{d}, &Options{Schema: schema, TimerPoll: poll, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewStarter(d, &StarterOptions{Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				_, err := s.Start(t.Context(), tx, ID{Scope: "tenant", Key: "k"}, struct{}{})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			holder, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = holder.Rollback(context.Background()) }()
			if _, err := holder.Exec(t.Context(), sqlschema.Bind(schema, hide)); err != nil {
				t.Fatal(err)
			}
			if name == "unknown" {
				if err := holder.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			o.timers.passed.Enable()
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { o.timers.runTimerLoop(ctx) })
			defer wg.Wait()
			defer stop()
			begun := time.Now()
			for range passes {
				if n := o.timers.passed.Wait(t); n != 0 {
					t.Errorf("a pass has run %d timers", n)
				}
			}
			if took := time.Since(begun); took < (passes-2)*poll {
				t.Errorf("%d passes in %s, want one every %s", passes, took, poll)
			}
		})
	}
}

// The claim of an instance is longer after each failed attempt.
func TestHowLongAnInstanceIsClaimed(t *testing.T) {
	t.Parallel()
	db, schema := pgtest.Schema(t)
	d := Must(Define("trip", 1, Step[struct{}]{Name: "book", Do: Remote[struct{}, any, any]("book", nil, nil), Deadline: time.Millisecond}))
	o, err := NewOrchestrator(db, nil, []Plan{d}, &Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStarter(d, &StarterOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for _, key := range []string{"a", "b", "c"} {
			if _, err := s.Start(t.Context(), tx, ID{Scope: "tenant", Key: key}, struct{}{}); err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), sqlschema.Bind(schema, "UPDATE {schema}.saga SET due_at = '2026-01-01', tries = ascii(key) - ascii('a') + 1"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := o.timers.claimDueInstances(t.Context(), 3, true); err != nil || len(all) != 3 {
		t.Fatalf("claimed %v, %v", all, err)
	}
	rows, _ := db.Query(t.Context(), sqlschema.Bind(schema, "SELECT key || ' ' || round(extract(epoch FROM due_at - min(due_at) OVER ())) FROM {schema}.saga ORDER BY key"))
	longer, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if got, want := strings.Join(longer, ", "), "a 0, b 20, c 60"; err != nil || got != want {
		t.Errorf("claimed for %q seconds more than the first, %v; want %q", got, err, want)
	}
}
