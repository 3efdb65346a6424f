package pgtest

import (
	"context"
	"net"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/commitloss"
)

// A Loss is the fault that strikes the next COMMIT.
type Loss = commitloss.Loss

// The losses. The connection is cut in each but LoseNothing.
const (
	LoseNothing = commitloss.Nothing
	LoseReply   = commitloss.Reply  // the server commits, its answer is lost
	LoseCommit  = commitloss.Commit // the server does not get it, and has rolled back when the client notices
	LoseAll     = commitloss.All    // like LoseReply, and the proxy accepts no more connections
)

// proxyConns is the size of the pool behind a proxy.
const proxyConns = 6

// A Proxy stands between a pool and its server, and loses a COMMIT or its reply: the two ways in which a
// client does not learn the outcome of its transaction.
type Proxy = commitloss.Proxy

// NewProxy returns a Proxy and a pool on it. Both end with the test.
func NewProxy(t testing.TB) (*Proxy, *pgxpool.Pool) {
	t.Helper()
	config, err := pgxpool.ParseConfig(URL())
	if err != nil {
		t.Fatalf("parse database URL: %v", err)
	}
	p, err := commitloss.Listen("127.0.0.1:0", net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // an error after LoseAll
	config.MaxConns = proxyConns
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil // the proxy reads the messages
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", p.Addr())
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("open pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return p, pool
}
