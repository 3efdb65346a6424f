package pgtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A Loss is what becomes of the next COMMIT.
type Loss int32

// The losses. The connection is cut in each but LoseNothing.
const (
	LoseNothing Loss = iota
	LoseReply        // the server commits, its answer is lost
	LoseCommit       // the server never hears of it, and has rolled back when the client notices
	LoseAll          // as LoseReply, and no connection is accepted any more
)

// proxyConns is the size of the pool behind a proxy.
const proxyConns = 6

// commitMessages are what pgx asks for a commit with: the simple query that a
// transaction sends, and the part of a Bind message that names the prepared
// statement in a batch.
var commitMessages = [][]byte{
	[]byte("Q\x00\x00\x00\x0bcommit\x00"),
	fmt.Appendf(nil, "\x00stmtcache_%x\x00", firstBytes(sha256.Sum256([]byte("commit")))),
}

// firstBytes are as many of a digest as pgx names a statement by.
func firstBytes(sum [sha256.Size]byte) []byte { return sum[:24] }

func asksForCommit(sent []byte) bool {
	return slices.ContainsFunc(commitMessages, func(m []byte) bool { return bytes.Contains(sent, m) })
}

// A Proxy stands between a pool and its server, and loses a COMMIT or the
// answer to one: the two ways in which a client is left not knowing the outcome
// of its transaction.
type Proxy struct {
	listener net.Listener
	server   string
	loss     atomic.Int32
	wg       sync.WaitGroup
}

// NewProxy returns a Proxy and a pool on it. Both end with the test.
func NewProxy(t testing.TB) (*Proxy, *pgxpool.Pool) {
	t.Helper()
	config, err := pgxpool.ParseConfig(URL())
	if err != nil {
		t.Fatalf("parse database URL: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	p := &Proxy{listener: listener, server: net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port)))}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.wg.Wait()
	})
	config.MaxConns = proxyConns
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil // the proxy has to read what is said
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("open pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return p, pool
}

// Addr returns where the Proxy listens, for a process of the test's own.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Lose decides what becomes of each COMMIT from now on.
func (p *Proxy) Lose(l Loss) { p.loss.Store(int32(l)) }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		var cut atomic.Bool
		p.wg.Go(func() { p.forward(client, server, &cut) })
		p.wg.Go(func() { answer(client, server, &cut) })
	}
}

// forward passes on what the client says, up to a COMMIT that is to be lost.
func (p *Proxy) forward(client, server net.Conn, cut *atomic.Bool) {
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		loss := Loss(p.loss.Load())
		if loss != LoseNothing && asksForCommit(buf[:n]) {
			cut.Store(true) // before the server can answer
			if loss == LoseAll {
				_ = p.listener.Close()
			}
			if loss == LoseCommit { // answer closes client once the server has rolled back and hung up
				_ = server.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, client)
				return
			}
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answer passes on what the server says. Once cut, the next thing it says is
// lost and the connection closed.
func answer(client, server net.Conn, cut *atomic.Bool) {
	defer client.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || cut.Load() {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
