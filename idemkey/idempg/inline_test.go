package idempg

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A deploy that changes the mode has stores of both on one table. buy writes the
// business row of an execution.
func bothModes(t *testing.T, grace time.Duration) (leased, inline *fixture, buy func(*execution)) {
	t.Helper()
	leased = newFixture(t, Options{Grace: grace})
	inline = newFixtureOn(t, leased.pool, leased.schema, Options{ClaimMode: ClaimInline})
	return leased, inline, func(e *execution) {
		t.Helper()
		if _, err := e.tx.Holder().Exec(t.Context(), "INSERT INTO "+leased.schema+".business (key) VALUES ($1)", e.id.Key); err != nil {
			t.Fatal(err)
		}
	}
}

var done = idemkey.Response{Status: 200, Header: http.Header{}}

// An owner that holds its row lock is in flight for an inline store too, however
// long ago its lease ran out. One that has died is not.
func TestInlineAfterLeased(t *testing.T) {
	t.Parallel()
	leased, inline, buy := bothModes(t, 100*time.Millisecond)
	c := idemkeytest.Claim("k", "a")
	owner := leased.begin(t, c)
	buy(owner)
	leased.exec(t, "SELECT pg_sleep(0.2)") // the lease runs out
	inline.kind(t, c, idemkey.KindInFlight)
	leased.crash(t, c.ID, owner)
	next := inline.begin(t, c)
	buy(next)
	leased.kind(t, c, idemkey.KindInFlight) // the record that is replaced is locked
	if err := next.Commit(t.Context(), done); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	leased.kind(t, c, idemkey.KindReplay)
	leased.expectRows(t, "k", 1)
}

// Of two owners that do not see each other, the one that leases has its claim
// committed, and wins. The other's business writes are gone.
func TestInlineBesideLeased(t *testing.T) {
	t.Parallel()
	leased, inline, buy := bothModes(t, time.Hour)
	c := idemkeytest.Claim("k", "a")
	loser, winner := inline.begin(t, c), leased.begin(t, c)
	buy(winner)
	if err := winner.Commit(t.Context(), done); err != nil {
		t.Errorf("Commit of the owner of the record: %v", err)
	}
	buy(loser)
	if err := loser.Commit(t.Context(), done); !errors.Is(err, idemkey.ErrLeaseLost) {
		t.Errorf("Commit over another's record: %v, want ErrLeaseLost", err)
	}
	leased.expectRows(t, "k", 1)
	leased.kind(t, c, idemkey.KindReplay)
}

// A record that an inline owner is to replace is not taken over meanwhile.
func TestInlineReplaces(t *testing.T) {
	t.Parallel()
	leased, inline, buy := bothModes(t, time.Hour)
	c := idemkeytest.Claim("k", "a")
	if err := leased.begin(t, c).Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Fatal(err)
	}
	owner := inline.begin(t, c)
	buy(owner)
	leased.kind(t, c, idemkey.KindInFlight)
	if err := owner.Commit(t.Context(), done); err != nil {
		t.Errorf("Commit: %v", err)
	}
	leased.kind(t, c, idemkey.KindReplay)
	leased.expectRows(t, "k", 1)
}

// A corrected request may use the key of one that a leasing store has failed.
func TestInlineForgets(t *testing.T) {
	t.Parallel()
	leased, inline, _ := bothModes(t, time.Hour)
	c := idemkeytest.Claim("k", "a")
	if err := leased.begin(t, c).Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Fatal(err)
	}
	if err := inline.begin(t, c).Release(t.Context(), idemkey.Forget, 400); err != nil {
		t.Fatal(err)
	}
	other := idemkeytest.Claim("k", "b")
	if err := leased.begin(t, other).Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Error(err)
	}
}

// What became of a COMMIT is known once its transaction is over, and not before.
func TestInlineLookUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{ClaimMode: ClaimInline})
	for _, commits := range []bool{true, false} {
		c := idemkeytest.Claim(map[bool]string{true: "committed", false: "rolled back"}[commits], "a")
		e := f.begin(t, c)
		look := func(when string, wantKept, wantKnown bool) {
			t.Helper()
			if kept, known, err := e.record.lookUpRecord(t.Context()); kept != wantKept || known != wantKnown || err != nil {
				t.Errorf("%s, %s: kept %t, known %t, %v", c.ID.Key, when, kept, known, err)
			}
		}
		look("open", false, false)
		if commits {
			if err := e.Commit(t.Context(), done); err != nil {
				t.Fatal(err)
			}
		} else if err := e.Release(t.Context(), idemkey.Bound, 500); err != nil {
			t.Fatal(err)
		}
		look("over", commits, true)
		if !commits {
			continue
		}
		tx, err := f.pool.Begin(t.Context()) // somebody looks at the row
		if err == nil {
			_, err = tx.Exec(t.Context(), "SELECT FROM "+f.schema+".idempotency_key FOR UPDATE")
		}
		if err != nil {
			t.Fatal(err)
		}
		look("locked by another", false, false)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A one-way cut is a connection to the server that is lost once the opening of a transaction has been
// sent, and of which the server never hears: its end of it stays open.
type oneWayCut struct {
	t       *testing.T
	address string // of the server
	locked  func() // returns when the server has executed the opening
}

func (c *oneWayCut) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, c.address)
	if err == nil {
		c.t.Cleanup(func() { _ = conn.Close() }) // not before, as a collected one would be
	}
	return &cutConn{Conn: conn, cut: c}, err
}

// A cutConn loses what comes after the opening.
type cutConn struct {
	net.Conn
	cut  *oneWayCut
	lost atomic.Bool
	seen sync.Once
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil // the driver's goodbye, too
	}
	c.lost.Store(bytes.Contains(p, []byte("pg_try_advisory_xact_lock")))
	return c.Conn.Write(p)
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.lost.Load() {
		c.seen.Do(c.cut.locked)
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Read(p)
}

// Close leaves the server's end open where the connection is lost.
func (c *cutConn) Close() error {
	if c.lost.Load() {
		return nil
	}
	return c.Conn.Close()
}

// The reply to the opening of a transaction is lost, and the server does not notice: the key is free all
// the same, long before the session is idle for too long.
func TestTheOpeningsReplyIsLost(t *testing.T) {
	t.Parallel()
	direct := newFixture(t, Options{ClaimMode: ClaimInline, IdleMargin: time.Hour})
	c := idemkeytest.Claim("k", "a")
	config := pgtest.DirectConfig(t)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // so that a statement is sent with its text
	cut := &oneWayCut{t: t, address: net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port)))}
	cut.locked = func() { direct.waitForLock(t, c.ID, true) }
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks, config.ConnConfig.DialFunc = nil, nil, cut.dial
	f := newFixtureOn(t, poolOf(t, config, 2), direct.schema, Options{ClaimMode: ClaimInline, IdleMargin: time.Hour})
	if d, err := f.Begin(t.Context(), c); err == nil {
		t.Fatalf("Begin = %v without an answer of the server", d.Kind)
	}
	direct.waitForLock(t, c.ID, false)
	if err := direct.begin(t, c).Commit(t.Context(), done); err != nil {
		t.Errorf("Commit of the next: %v", err)
	}
}

// waitForLock waits until id's lock is held, or free.
func (f *fixture) waitForLock(t *testing.T, id idemkey.Identity, want bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for held := !want; held != want; {
		if err := f.pool.QueryRow(ctx, sqlReadLock, f.lockKey(id)).Scan(&held); err != nil {
			t.Errorf("wait until the lock is held %t: %v", want, err)
			return
		}
	}
}
