package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// usePool gives the fixture a pool of n connections, and returns how many of them are in use and the most that ever were.
func (f *fixture) usePool(t *testing.T, n int32) (used, most *atomic.Int32) {
	t.Helper()
	used, most = &atomic.Int32{}, &atomic.Int32{}
	config := f.pool.Config()
	config.MaxConns = n
	config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		for now := used.Add(1); ; {
			if was := most.Load(); was >= now || most.CompareAndSwap(was, now) {
				return true, nil
			}
		}
	}
	config.AfterRelease = func(*pgx.Conn) bool { used.Add(-1); return true }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	f.pool = pool
	return used, most
}

// A page needs one connection at a time: it does not wait for another one while it holds one.
func TestAPageNeedsOneConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleAdmin, nil)
	f.putSecrets(t)
	f.usePool(t, 1)
	f.start(t, RoleAdmin, func(o *Options) { o.ReadTimeout = time.Minute })
	paths := append([]string{f.letterPath("letter", 1), f.letterPath("letter/edit", 1), f.sagaURL("t1"), "/why?q=t1", "/message?id=1", "/change/decide?verb=cancel&key=t1", "/journal.csv"}, pagesOfTests...)
	for _, path := range paths {
		if response, text := f.get(t, path); response.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%s = %d: %s", path, response.StatusCode, text)
		}
	}
	f.begin(t, "/change/redrive", confirmation(f.previewToken(t, "/change/redrive?topic=pay&step=charge"), 2))
	f.begin(t, "/change/decide", confirmation(f.previewToken(t, "/change/decide?verb=retry&key=k0001"), 1))
	f.console.runs.working.Wait()
	if got := f.readText(t, "SELECT count(*)::text FROM {schema}.parked WHERE state = 'retrying'"); got != "3" {
		t.Errorf("%s letters are retrying, want 3", got)
	}
}

// However many browsers there are, the console leaves most of a pool to the service that shares it.
func TestBrowsersLeaveConnectionsToTheService(t *testing.T) {
	t.Parallel()
	const browsers = 12
	f := newFixture(t, RoleViewer, nil)
	f.putStuck(t, "k", 1)
	_, most := f.usePool(t, 10)
	var asked sync.WaitGroup
	asked.Add(browsers)
	f.start(t, RoleViewer, func(o *Options) {
		o.ReadTimeout = time.Minute
		o.Authorize = func(*http.Request) (Actor, Role, error) { asked.Done(); return "ann", RoleViewer, nil }
	})
	holder, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hold := func(statement string) {
		t.Helper()
		if _, err := holder.Exec(t.Context(), strings.ReplaceAll(statement, "{schema}", f.schema)); err != nil {
			t.Fatal(err)
		}
	}
	hold("BEGIN; LOCK TABLE {schema}.saga IN ACCESS EXCLUSIVE MODE")
	var answered sync.WaitGroup
	for i := range browsers {
		answered.Go(func() {
			response, err := http.Get(fmt.Sprintf("%s/sagas?state=stuck&age=%ds", f.url, i))
			if err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("browser %d: %v, %v", i, response, err)
				return
			}
			response.Body.Close()
		})
	}
	asked.Wait()
	var one int // the service has a connection at once
	if err := f.pool.QueryRow(t.Context(), "SELECT 1").Scan(&one); err != nil {
		t.Error(err)
	}
	hold("ROLLBACK")
	holder.Release()
	answered.Wait()
	if pages := defaultMaxConns - (&Options{MaxConns: defaultMaxConns}).activeRuns(); most.Load() > int32(pages+2) {
		t.Errorf("%d connections were in use at once: want those of %d pages, and two of this test", most.Load(), pages)
	}
}

// A page that gets no connection in time says why.
func TestAPageSaysThatOthersUseTheConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t, RoleViewer, func(o *Options) { o.MaxConns, o.ReadTimeout = 2, 50*time.Millisecond })
	f.console.readers <- struct{}{}
	response, text := f.get(t, "/sagas")
	if contains(t, text, "Other pages of the console use all connections"); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the page = %d, want 503", response.StatusCode)
	}
	<-f.console.readers
	if response, text := f.get(t, "/requests"); response.StatusCode != http.StatusOK {
		t.Errorf("the page = %d: %s", response.StatusCode, text)
	}
}
