package handover

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A fault is what is wrong with a path.
type fault string

const (
	none        fault = ""
	reset       fault = "reset"
	blackHole   fault = "black hole"
	answersLost fault = "answers lost"
)

// A path forwards connections to the database.
type path struct {
	listener net.Listener
	server   string
	work     sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond
	fault  fault
	ends   map[net.Conn]bool // of all connections
}

// newPath returns a path and a pool on it. Both end with the test.
func newPath(t *testing.T) (*path, *pgxpool.Pool) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.URL())
	if err != nil {
		t.Fatal(err)
	}
	p := &path{server: net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))), ends: map[net.Conn]bool{}}
	p.change = sync.NewCond(&p.mu)
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	p.work.Go(p.acceptClients)
	t.Cleanup(func() {
		p.listener.Close()
		p.set(reset)
		p.work.Wait()
	})
	config.MaxConns = 6
	config.ConnConfig.TLSConfig, config.ConnConfig.Fallbacks = nil, nil
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", p.listener.Addr().String())
	}
	return p, pgtest.PoolOf(t, config)
}

// set changes what is wrong. A change between faults and health ends all connections, as a firewall does that has
// forgotten them.
func (p *path) set(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	p.change.Broadcast()
	if f == none || f == reset {
		for end := range p.ends {
			_ = end.(*net.TCPConn).SetLinger(0)
			end.Close()
		}
		clear(p.ends)
	}
}

func (p *path) acceptClients() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		refused := p.fault == reset
		if !refused {
			p.ends[client], p.ends[server] = true, true
		}
		p.mu.Unlock()
		if refused {
			client.Close()
			server.Close()
			continue
		}
		p.work.Go(func() { p.forward(server, client, blackHole) })
		p.work.Go(func() { p.forward(client, server, blackHole, answersLost) })
	}
}

// forward copies from one end to the other, but holds everything back while one of faults is set. It ends with either.
func (p *path) forward(to, from net.Conn, faults ...fault) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil || !p.await(from, faults) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// await waits until none of faults is set, and reports whether the connection of end is still there.
func (p *path) await(end net.Conn, faults []fault) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.ends[end] {
		held := false
		for _, f := range faults {
			held = held || p.fault == f
		}
		if !held {
			return true
		}
		p.change.Wait()
	}
	return false
}
