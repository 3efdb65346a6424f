package outbox

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A path that drops packets without a word, in one direction or in both, is noticed by the relay that listens on it. It
// listens again on another connection, and is woken on that.
func TestARelayNoticesThatItHearsNothing(t *testing.T) {
	t.Parallel()
	for name, direction := range map[string]struct{ up, down bool }{
		"nothing arrives":       {down: true},
		"nothing leaves":        {up: true},
		"in neither direction":  {true, true},
		"the path is only idle": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			path := &path{}
			config := pgtest.DirectConfig(t)
			dial := config.ConnConfig.DialFunc
			config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				return &pathConn{Conn: conn, path: path, opened: path.opened.Load()}, err
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			r, err := NewRelay(pool, f.broker, &RelayOptions{Schema: f.schema, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			r.signals.listening.Enable()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				r.listenForWakes(ctx)
			}()
			defer func() { cancel(); <-ended }()
			r.signals.listening.Wait(t)
			<-r.wake                                                      // it looks once when it begins to listen
			if _, err := pool.Exec(t.Context(), "SELECT 1"); err != nil { // leaves a connection in the pool, on the same path
				t.Fatal(err)
			}
			if direction.up || direction.down {
				path.up.Store(direction.up)
				path.down.Store(direction.down)
				path.opened.Add(1) // later connections take another path
				r.signals.listening.Wait(t)
				<-r.wake
			} else {
				select { // it is silent for longer than its patience
				case <-r.wake:
					t.Error("a relay on a silent path listens anew")
				case <-time.After(listenSilence + listenPatience):
				}
			}
			if _, err := f.pool.Exec(t.Context(), sqlNotify, channelName(f.schema), ""); err != nil {
				t.Fatal(err)
			}
			select {
			case <-r.wake:
			case <-time.After(time.Minute):
				t.Error("the relay is not woken")
			}
		})
	}
}

// A path drops what is sent on the connections that were opened before it was cut.
type path struct {
	up, down atomic.Bool
	opened   atomic.Int64
}

type pathConn struct {
	net.Conn
	path   *path
	opened int64
}

func (c *pathConn) isOld() bool { return c.opened < c.path.opened.Load() }

func (c *pathConn) Write(p []byte) (int, error) {
	if c.path.up.Load() && c.isOld() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *pathConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.path.down.Load() || !c.isOld() {
			return n, err
		}
	}
}
