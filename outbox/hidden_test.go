package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testsignal"
)

// logSignal sends each line of a log, with its error, to a test.
type logSignal struct{ testsignal.Signal[string] }

func (l *logSignal) Enabled(context.Context, slog.Level) bool { return true }
func (l *logSignal) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logSignal) WithGroup(string) slog.Handler            { return l }
func (l *logSignal) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	l.Send(line)
	return nil
}

// A policy that hides the rows of a table from the relay, enabled in mid-tenure, makes the relay fail and name the table.
// It costs no message: all are published once the rows are visible again.
func TestHiddenRowsAreNotPassedOver(t *testing.T) {
	t.Parallel()
	for leaf, table := range []string{"outbox_0", "outbox_1", "outbox_2", "outbox_other", "outbox_held", "outbox_relay", "outbox_tenure", "outbox_cursor_0"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			outsider := pgtest.NewOutsider(t, f.pool, f.schema)
			var refusing atomic.Bool
			refusing.Store(true)
			f.broker.answer = func(p Publication) error {
				if strings.HasPrefix(string(p.Message.Payload), "refused") && refusing.Load() {
					return ErrRefused
				}
				return nil
			}
			accepted := &f.broker.signal
			accepted.Enable()
			log := &logSignal{}
			log.Enable()
			hidden := *f
			hidden.pool = outsider.Pool
			r := hidden.relay(t, RelayOptions{RetryBase: time.Millisecond, RetryCap: time.Millisecond, MaxAttempts: 1 << 20, RotateBytes: 1, Lease: time.Second, Logger: slog.New(log)})
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			defer func() {
				stop()
				if err := <-done; err != nil {
					t.Errorf("Run = %v", err)
				}
			}()
			if leaf < rotated {
				f.exec(t, fmt.Sprintf("SELECT setval('{schema}.outbox_leaf', %d)", 30+leaf))
			}
			f.write(t, msg("a", "before"))
			accepted.WaitFor(t, func(p string) bool { return p == "before" })
			outsider.Hide(t, table)
			f.write(t, msg("a", "hidden"), msg("b", "refused"), msg("b", "behind"))
			if table == "outbox_other" {
				f.exec(t, "UPDATE {schema}.outbox SET leaf = 9 WHERE convert_from(payload, 'UTF8') <> 'before'")
			}
			log.WaitFor(t, func(line string) bool {
				return strings.Contains(line, "row-level security") && strings.Contains(line, table)
			})
			refusing.Store(false)
			outsider.Show(t, table)
			missing := []string{"hidden", "refused", "behind"}
			accepted.WaitFor(t, func(p string) bool {
				missing = slices.DeleteFunc(missing, func(m string) bool { return m == p })
				return len(missing) == 0
			})
		})
	}
}

// Sessions that were opened while the database was read-only do not outlast that time: neither those of the pool, nor the
// one that reads the log. Another relay, or this one, goes on as soon as the database takes writes.
func TestARelayOutlivesAReadOnlyWindow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	outsider := pgtest.NewOutsider(t, f.pool, f.schema)
	accepted := &f.broker.signal
	accepted.Enable()
	log := &logSignal{}
	log.Enable()
	few := outsider.Pool.Config()
	few.MaxConns = 2 // those of an active relay: no session that was opened later can help
	relayed := *f
	relayed.pool = pgtest.PoolOf(t, few)
	r := relayed.relay(t, RelayOptions{Lease: time.Second, Logger: slog.New(log)})
	stop := start(t, r)
	defer stop()
	f.write(t, msg("a", "before"))
	accepted.WaitFor(t, func(p string) bool { return p == "before" })
	for _, payload := range []string{"during", "again"} {
		outsider.Exec(t, "ALTER ROLE {role} SET default_transaction_read_only = on")
		outsider.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
		f.write(t, msg("a", payload))
		for range 3 { // also the sessions that were made since
			log.WaitFor(t, func(line string) bool { return strings.Contains(line, "25006") })
		}
		outsider.Exec(t, "ALTER ROLE {role} RESET default_transaction_read_only")
		accepted.WaitFor(t, func(p string) bool { return p == payload })
	}
}
