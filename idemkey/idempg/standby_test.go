package idempg

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/migrations"
)

// With a synchronous standby that does not answer, COMMIT waits. Giving up on it
// ends the wait, which makes the commit visible here and nowhere else: a failover
// to the standby would take it back. So the look-up that finds it does not believe it.
func TestSynchronousStandby(t *testing.T) {
	needtest.Slow(t)
	f := newFixtureOnPrivate(t)
	f.exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	f.exec(t, "SELECT pg_reload_conf()")
	f.waitForStandby(t)
	post(t, handle(t, f, f.buy), "k").expect(t, 503, "outcome-unverified")
	f.exec(t, "ALTER SYSTEM RESET synchronous_standby_names")
	f.exec(t, "SELECT pg_reload_conf()")
	f.waitFor(t, "SELECT current_setting('synchronous_standby_names') = ''")
	if again := post(t, handle(t, f, f.buy), "k"); again.status != 201 || !again.replay {
		t.Errorf("retry once the standby is dismissed = %+v, want a replay", again)
	}
	f.expectRows(t, "k", 1)
}

// waitForStandby returns when commits wait for a standby, which they do some time after
// sessions see the setting: another process of the server says so.
func (f *fixture) waitForStandby(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var probes sync.WaitGroup
	var seen atomic.Bool
	t.Cleanup(func() {
		cancel()
		probes.Wait()
	})
	probes.Go(func() {
		for ctx.Err() == nil && !seen.Load() {
			_, _ = f.pool.Exec(ctx, "SELECT pg_logical_emit_message(true, 'probe', '')")
		}
	})
	f.waitFor(t, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
	seen.Store(true)
}

// newFixtureOnPrivate is for a server whose settings the test changes.
func newFixtureOnPrivate(t *testing.T) *fixture {
	t.Helper()
	t.Setenv("AMQP_URL", devservices.InProcess)
	t.Setenv("DATABASE_URL", "")
	services, err := devservices.Start(t.Context(), &devservices.Options{Steps: "env,private"})
	if err != nil {
		needtest.Missing(t, "postgres", "no PostgreSQL of the test's own: %v", err)
	}
	t.Cleanup(func() { _ = services.Close() })
	schema := pgtest.Name()
	if err := migrations.Up(context.WithoutCancel(t.Context()), services.DatabaseURL, schema); err != nil {
		t.Fatal(err)
	}
	f := newFixtureOn(t, pgtest.Pool(t, services.DatabaseURL), schema, Options{})
	f.exec(t, strings.ReplaceAll(sqlCreateBusiness, "{schema}", schema))
	return f
}
