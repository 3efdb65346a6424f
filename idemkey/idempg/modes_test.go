package idempg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// The suite in the ways that pgx can talk, as behind a pooler.
func TestExecModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeCacheDescribe} {
		for _, claim := range []ClaimMode{ClaimLeased, ClaimInline} {
			t.Run(fmt.Sprint(mode, claim), func(t *testing.T) {
				t.Parallel()
				idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
					f := newFixture(t, Options{})
					f = newFixtureOn(t, poolOf(t, pgtest.ModeConfig(t, mode), 6), f.schema, Options{ClaimMode: claim})
					return idemkeytest.Subject{Store: f, Crash: f.crash, Expire: f.expire, Held: f.held, Damage: f.damage}
				})
			})
		}
	}
}

// The suite where the database's defaults are the strictest.
func TestStrictDefaults(t *testing.T) {
	t.Parallel()
	for _, claim := range []ClaimMode{ClaimLeased, ClaimInline} {
		t.Run(fmt.Sprint(claim), func(t *testing.T) {
			t.Parallel()
			idemkeytest.Run(t, func(t *testing.T) idemkeytest.Subject {
				f := newFixture(t, Options{})
				config := pgtest.DirectConfig(t)
				config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
				f = newFixtureOn(t, poolOf(t, config, 6), f.schema, Options{ClaimMode: claim})
				return idemkeytest.Subject{Store: f, Crash: f.crash, Expire: f.expire, Held: f.held, Damage: f.damage}
			})
		})
	}
}

// Nothing that was set stays on a connection, however pgx talks.
func TestSettingsDoNotStay(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeDescribeExec} {
		for _, claim := range []ClaimMode{ClaimLeased, ClaimInline} {
			f := newFixture(t, Options{})
			pool := poolOf(t, pgtest.ModeConfig(t, mode), 6)
			f = newFixtureOn(t, pool, f.schema, Options{ClaimMode: claim})
			server := handle(t, f, f.buy)
			bad := handle(t, f, status(422, idemkey.Undecided))
			worse := handle(t, f, status(500, idemkey.Undecided))
			for _, s := range []*httptest.Server{server, server, bad, worse} {
				post(t, s, "k")
				post(t, s, fmt.Sprint(mode, s.URL))
				post(t, s, "")
			}
			for _, c := range pool.AcquireAllIdle(t.Context()) {
				var got string
				err := c.QueryRow(t.Context(), `SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'),
					current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout'), current_setting('client_connection_check_interval'),
					(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()))`).Scan(&got)
				if err != nil || got != "0 0 on 0 0 0" {
					t.Errorf("mode %v %d: %q %v", mode, claim, got, err)
				}
				c.Release()
			}
		}
	}
}

// Both modes on one table, with grace that lapses, failures, rejections, and
// handlers that stall: one business row for each key.
func TestMixedModes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	stores := []*Store{
		newFixtureOn(t, f.pool, f.schema, Options{Grace: 20 * time.Millisecond}).Store,
		newFixtureOn(t, f.pool, f.schema, Options{ClaimMode: ClaimInline}).Store,
		newFixtureOn(t, f.pool, f.schema, Options{Grace: 20 * time.Millisecond, Isolation: pgx.RepeatableRead}).Store,
	}
	for key := range 40 {
		k := fmt.Sprintf("mix-%d", key)
		c := idemkeytest.Claim(k, "a")
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Second)
				defer cancel()
				for range 3 {
					d, err := stores[(i+rand.N(2))%3].Begin(ctx, c)
					if err != nil || d.Exec == nil {
						f.pause(t, 5)
						continue
					}
					tx := d.Exec.Context(ctx)
					f.pause(t, 30)
					_, err = Tx(tx).Exec(ctx, "INSERT INTO "+f.schema+".business (key) VALUES ($1)", k)
					f.pause(t, 30)
					switch n := rand.N(10); {
					case err != nil:
						_ = d.Exec.Release(ctx, idemkey.Bound, 500)
					case n < 2:
						_ = d.Exec.Release(ctx, idemkey.Bound, 500)
					case n < 4:
						_ = d.Exec.Release(ctx, idemkey.Forget, 500)
					case n < 5:
						_ = d.Exec.(*execution).conn.Conn().PgConn().Conn().Close()
						d.Exec.(*execution).endExecution()
					default:
						_ = d.Exec.Commit(ctx, idemkey.Response{Status: 201})
					}
				}
			})
		}
		wg.Wait()
		if n := f.rows(t, k); n > 1 {
			t.Fatalf("key %s: %d business rows", k, n)
		}
	}
}

// pause lasts up to as many milliseconds, by the server's clock.
func (f *fixture) pause(t *testing.T, most int) {
	f.exec(t, "SELECT pg_sleep($1::float8 / 1000)", rand.IntN(most))
}

// The opener fires as the handler ends: nothing is left behind by either.
func TestOpenerRace(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Grace: 4 * time.Millisecond})
	for i := range 200 {
		k := fmt.Sprint("o", i)
		d, err := f.Store.Begin(t.Context(), idemkeytest.Claim(k, "a"))
		if err != nil || d.Exec == nil {
			t.Fatal(d.Kind, err)
		}
		f.pause(t, 2)
		switch i % 4 {
		case 0:
			err = d.Exec.Commit(t.Context(), idemkey.Response{Status: 201})
		case 1:
			err = d.Exec.Reject(t.Context(), idemkey.Response{Status: 422})
		case 2:
			err = d.Exec.Release(t.Context(), idemkey.Bound, 500)
		case 3:
			_, err = Tx(d.Exec.Context(t.Context())).Exec(t.Context(), "INSERT INTO "+f.schema+".business (key) VALUES ($1)", k)
			err = errors.Join(err, d.Exec.Commit(t.Context(), idemkey.Response{Status: 201}))
		}
		if err != nil {
			t.Errorf("end %d: %v", i%4, err)
		}
	}
	if n := f.pool.Stat().AcquiredConns(); n != 0 || len(f.slot) != 0 {
		t.Errorf("%d connections, %d places still held", n, len(f.slot))
	}
}
