package saga

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pgtest"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// What is due and is somebody else's does not have the table read over and over: an
// instance that is locked, and one of a version that is not registered here.
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
				_, err := s.Start(t.Context(), tx, "tenant", "k", struct{}{})
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
			o.signals.timerPass.Enable()
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { o.runTimers(ctx) })
			defer wg.Wait()
			defer stop()
			begun := time.Now()
			for range passes {
				if n := o.signals.timerPass.Wait(t); n != 0 {
					t.Errorf("a pass has run %d timers", n)
				}
			}
			if took := time.Since(begun); took < (passes-2)*poll {
				t.Errorf("%d passes in %s, want one every %s", passes, took, poll)
			}
		})
	}
}
