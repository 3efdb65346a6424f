//go:build failpoints

package matrixtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// maxLines is more than any server here has to tell.
const maxLines = 100

// A process is a server of its own.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
	said  chan string   // its lines; closed when it has ended
	ended chan struct{} // closed after that
	runs  atomic.Int32  // of its handler
}

// start returns a server that has been armed with fault. It ends with the test.
func start(t *testing.T, c settings, fault string) *process {
	t.Helper()
	encoded, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0]), said: make(chan string, maxLines), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), serverEnv+"="+string(encoded), "SAGAMILL_FAILPOINTS="+fault)
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start server: %v", err)
	}
	go func() { // ends with the process
		defer close(p.ended)
		defer close(p.said)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if lines.Text() == saidRan {
				p.runs.Add(1)
			}
			p.said <- lines.Text()
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	p.url = "http://" + p.line(t)
	return p
}

// line returns the next line that the server says.
func (p *process) line(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-p.said:
		if !ok {
			t.Fatal("the server has ended")
		}
		return line
	case <-time.After(patience):
		t.Fatalf("the server said nothing within %v", patience)
		panic("unreachable")
	}
}

// wait waits for the server to say a certain line.
func (p *process) wait(t *testing.T, line string) {
	t.Helper()
	for p.line(t) != line {
	}
}

// outcome waits for a handler's end and returns what became of it.
func (p *process) outcome(t *testing.T) string {
	t.Helper()
	for {
		if outcome, ok := strings.CutPrefix(p.line(t), saidOutcome); ok {
			return outcome
		}
	}
}

func (p *process) signal(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err) // our own child
	}
}

// kill ends the process at once, also while it is stopped, and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
	_ = p.stdin.Close()
}

// dead reports whether the process has ended or is about to: it no longer says anything.
func (p *process) dead() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// rollbackMessage is the simple query that pgx sends.
var rollbackMessage = []byte("rollback\x00")

// A link is the way from a process to its store.
type link struct {
	listener net.Listener
	network  string
	server   string
	over     chan struct{} // closed with the test
	held     chan struct{} // closed once something is held back
	hold     atomic.Bool
	once     sync.Once
	wg       sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool // both ends of each connection
}

// newLink returns a link to addr that ends with the test.
func newLink(t *testing.T, network, addr string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	l := &link{listener: listener, network: network, server: addr, conns: make(map[net.Conn]bool),
		over: make(chan struct{}), held: make(chan struct{})}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		close(l.over)
		_ = listener.Close()
		l.cut()
		l.wg.Wait()
	})
	return l
}

func (l *link) addr() string { return l.listener.Addr().String() }

// cut ends every connection, and any new one at once.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for conn := range l.conns {
		_ = conn.Close()
	}
	clear(l.conns)
}

// holdAfterRollback holds back whatever a client says after a ROLLBACK.
func (l *link) holdAfterRollback() { l.hold.Store(true) }

// keep reports whether the connections may be used.
func (l *link) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		if l.down {
			_ = conn.Close()
			continue
		}
		l.conns[conn] = true
	}
	return !l.down
}

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(l.network, l.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		if l.keep(client, server) {
			l.wg.Go(func() { l.pass(server, client, true) })
			l.wg.Go(func() { l.pass(client, server, false) })
		}
	}
}

// pass copies what comes from one end to the other, and closes both in the end.
func (l *link) pass(to, from net.Conn, asked bool) {
	defer to.Close()
	defer from.Close()
	buf, rolledBack := make([]byte, 64<<10), false
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if rolledBack {
			l.once.Do(func() { close(l.held) })
			<-l.over
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		rolledBack = asked && l.hold.Load() && bytes.Contains(buf[:n], rollbackMessage)
	}
}
