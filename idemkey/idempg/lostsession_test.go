package idempg

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A handler gives up a statement, and the server hears neither of the cancel request nor of the closed connection. The
// release ends the session, so that a retry runs, long before the grace is over.
func TestAReleaseEndsTheLostSession(t *testing.T) {
	t.Parallel()
	for _, mode := range []ClaimMode{ClaimLeased, ClaimInline} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			t.Parallel()
			direct := newFixture(t, Options{ClaimMode: mode})
			config := pgtest.DirectConfig(t)
			dial := config.ConnConfig.DialFunc
			config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil
			config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				if err == nil {
					t.Cleanup(func() { _ = conn.Close() })
				}
				return &silentConn{conn}, err
			}
			options := Options{ClaimMode: mode, Grace: time.Hour, IdleMargin: time.Hour, ConnectionCheck: time.Hour}
			f := newFixtureOn(t, poolOf(t, config, 4), direct.schema, options)
			c := idemkeytest.Claim("k", "a")
			c.ExecTimeout = time.Hour
			e := f.begin(t, c)
			call, cancel := context.WithCancel(t.Context())
			go func() {
				defer cancel()
				untilSleeping(t, f.schema, direct.pool)
			}()
			if _, err := e.tx.Holder().Exec(call, "DO $$ BEGIN INSERT INTO "+f.schema+".business (key) VALUES ('k'); END $$"); err != nil {
				t.Fatal(err)
			}
			if _, err := e.tx.Holder().Exec(call, "SELECT pg_sleep(600)"); err == nil {
				t.Fatal("the statement was not given up")
			}
			limited, done := context.WithTimeout(t.Context(), 20*time.Second)
			defer done()
			if err := e.Release(limited, idemkey.Bound, 503); err != nil {
				t.Errorf("Release: %v", err)
			}
			direct.kind(t, c, idemkey.KindProceed)
			direct.expectRows(t, "k", 0)
		})
	}
}

// Another session has locked the record's row when its owner releases it.
func TestAReleaseWaitsForALockOfOthers(t *testing.T) {
	t.Parallel()
	direct := newFixture(t, Options{})
	other, err := direct.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	config := pgtest.DirectConfig(t)
	look := &before{sql: direct.q.endLostOwner, do: other.Commit}
	config.ConnConfig.Tracer = look
	f := newFixtureOn(t, poolOf(t, config, 4), direct.schema, Options{Grace: time.Hour})
	c := idemkeytest.Claim("k", "a")
	e := f.begin(t, c)
	if _, err := other.Exec(t.Context(), "SELECT FROM "+f.schema+".idempotency_key FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if err := e.Release(t.Context(), idemkey.Bound, 503); err != nil {
		t.Errorf("Release: %v", err)
	}
	if look.ran == 0 || look.err != nil {
		t.Errorf("%d looks at who has the lock, %v", look.ran, look.err)
	}
	direct.kind(t, c, idemkey.KindProceed)
}

// A silentConn is a connection whose end and whose cancel requests do not reach the server.
type silentConn struct{ net.Conn }

// cancelCode is the number that PostgreSQL's protocol puts behind the length of a cancel request.
const cancelCode = 80877102

func (c *silentConn) Write(p []byte) (int, error) {
	if len(p) >= 8 && binary.BigEndian.Uint32(p[4:]) == cancelCode {
		return len(p), c.Conn.Close()
	}
	return c.Conn.Write(p)
}

// Close wakes the driver's reader and leaves the server's end open.
func (c *silentConn) Close() error { return c.SetReadDeadline(time.Unix(1, 0)) }
