package redistest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A Loss is the fault that strikes the scripts of a client.
type Loss int32

// The losses. The connection is cut in each but LoseNothing and Hang.
const (
	LoseNothing Loss = iota
	LoseReply        // one script runs and its reply is lost; later ones pass
	LoseReplies      // each script runs and its reply is lost
	LoseCalls        // each call is lost before the server gets it
	Hang             // like LoseCalls, but the connection stays open without a reply
)

// A Proxy stands between a client and the shared server, and loses calls of
// scripts or the replies to them.
type Proxy struct {
	listener net.Listener
	network  string
	server   string
	url      string
	loss     atomic.Int32
	lost     atomic.Int32
	wg       sync.WaitGroup
}

// NewProxy returns a Proxy and a client on it. Both end with the test.
func NewProxy(t testing.TB) (*Proxy, *redis.Client) {
	t.Helper()
	opts := Options(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	p := &Proxy{listener: listener, network: opts.Network, server: opts.Addr}
	through := url.URL{Scheme: "redis", Host: listener.Addr().String(), Path: fmt.Sprint("/", opts.DB)}
	if opts.Password != "" {
		through.User = url.UserPassword(opts.Username, opts.Password)
	}
	p.url = through.String()
	p.wg.Go(p.acceptClients)
	t.Cleanup(func() { // after the client is closed, and with it each connection
		_ = listener.Close()
		p.wg.Wait()
	})
	opts.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
	}
	return p, newClient(t, opts)
}

// URL returns the URL of the server through the proxy, for a client in another process.
func (p *Proxy) URL() string { return p.url }

// Addr returns the address of the Proxy, for another process of the test.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Lose sets the fault of each script from now on.
func (p *Proxy) Lose(l Loss) { p.loss.Store(int32(l)) }

// Lost returns the number of lost calls and replies.
func (p *Proxy) Lost() int { return int(p.lost.Load()) }

func (p *Proxy) acceptClients() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(p.network, p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		var cut atomic.Bool
		p.wg.Go(func() { p.forwardCommands(client, server, &cut) })
		p.wg.Go(func() { forwardReplies(client, server, &cut) })
	}
}

// forwardCommands forwards the client's commands, up to a script that must be lost.
func (p *Proxy) forwardCommands(client, server net.Conn, cut *atomic.Bool) {
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		loss := Loss(p.loss.Load())
		if loss != LoseNothing && bytes.Contains(bytes.ToLower(buf[:n]), []byte("\r\neval")) {
			p.lost.Add(1)
			switch loss {
			case Hang:
				continue
			case LoseCalls:
				_ = client.Close()
				return
			case LoseReply:
				p.loss.CompareAndSwap(int32(LoseReply), int32(LoseNothing))
			}
			cut.Store(true) // before the server can answer
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// forwardReplies forwards the server's replies. After cut it drops the next reply and closes the connection.
func forwardReplies(client, server net.Conn, cut *atomic.Bool) {
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
