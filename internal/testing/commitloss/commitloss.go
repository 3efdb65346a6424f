// Package commitloss is a proxy in front of PostgreSQL that loses a COMMIT or its reply: the two ways in
// which a client does not learn the outcome of its transaction.
package commitloss

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// A Loss is the fault that strikes the next COMMIT.
type Loss int32

// The losses. The connection is cut in each but Nothing.
const (
	Nothing Loss = iota
	Reply        // the server commits, its answer is lost
	Commit       // the server does not get it, and has rolled back when the client notices
	All          // like Reply, and the proxy accepts no more connections
)

// commitMessages are the messages by which pgx commits. A transaction sends the simple query. A batch sends a
// Bind message, whose part here names the prepared statement, or the Parse message of an unnamed statement.
var commitMessages = [][]byte{
	[]byte("Q\x00\x00\x00\x0bcommit\x00"),
	fmt.Appendf(nil, "\x00stmtcache_%x\x00", firstBytes(sha256.Sum256([]byte("commit")))),
	[]byte("P\x00\x00\x00\x0e\x00commit\x00\x00\x00"),
}

// committed is the server's reply to a COMMIT that took effect. readyForQuery is the start of the message
// that ends a reply.
var (
	committed     = []byte("C\x00\x00\x00\x0bCOMMIT\x00")
	readyForQuery = []byte("Z\x00\x00\x00\x05")
)

// firstBytes is how many bytes of a digest the name of a statement of pgx has.
func firstBytes(sum [sha256.Size]byte) []byte { return sum[:24] }

func asksForCommit(sent []byte) bool {
	return slices.ContainsFunc(commitMessages, func(m []byte) bool { return bytes.Contains(sent, m) })
}

// A Proxy stands between clients and their server.
type Proxy struct {
	listener net.Listener
	server   string
	loss     atomic.Int32
	wg       sync.WaitGroup

	commits, replies, conns atomic.Int64
}

// Listen returns a Proxy that listens on address and leads to server, both as host:port. If the server is
// away, the client sees a closed connection.
func Listen(address, server string) (*Proxy, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("commitloss: %w", err)
	}
	p := &Proxy{listener: listener, server: server}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr returns the address of the Proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Lose sets the fault of each COMMIT from now on.
func (p *Proxy) Lose(l Loss) { p.loss.Store(int32(l)) }

// Commits returns the number of lost COMMITs, and Replies the number of lost replies to a COMMIT that took
// effect.
func (p *Proxy) Commits() int { return int(p.commits.Load()) }

// Replies: see [Proxy.Commits].
func (p *Proxy) Replies() int { return int(p.replies.Load()) }

// Conns returns the number of open connections through the Proxy.
func (p *Proxy) Conns() int { return int(p.conns.Load()) }

// Close accepts no more connections, and returns when all open ones have ended at either side.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.wg.Wait()
	return err
}

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
		p.conns.Add(1)
		p.wg.Go(func() { p.forward(client, server, &cut) })
		p.wg.Go(func() {
			defer p.conns.Add(-1)
			p.answer(client, server, &cut)
		})
	}
}

// forward forwards the client's messages, up to a COMMIT that must be lost.
func (p *Proxy) forward(client, server net.Conn, cut *atomic.Bool) {
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		loss := Loss(p.loss.Load())
		if loss != Nothing && asksForCommit(buf[:n]) {
			cut.Store(true) // before the server can answer
			if loss == All {
				_ = p.listener.Close()
			}
			if loss == Commit { // answer closes client after the server has rolled back and hung up
				p.commits.Add(1)
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

// answer forwards the server's messages. After cut it drops the reply to the request with the COMMIT, and
// closes the connection.
func (p *Proxy) answer(client, server net.Conn, cut *atomic.Bool) {
	defer client.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		switch {
		case err != nil:
			return
		case !cut.Load():
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		case bytes.Contains(buf[:n], committed):
			p.replies.Add(1)
			return
		case bytes.Contains(buf[:n], readyForQuery):
			return // the server refused the COMMIT
		}
	}
}
