//go:build failpoints

package matrixtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// maxLines is more than any server here has to tell.
const maxLines = 100

// An instance is a server that requests are sent to.
type instance struct {
	url  string
	runs atomic.Int32 // of its handler
}

func (i *instance) count(line string) {
	if line == saidRan {
		i.runs.Add(1)
	}
}

// A process is a server of its own.
type process struct {
	instance
	cmd   *exec.Cmd
	stdin io.Closer
	said  chan string   // its lines; closed when it has ended
	ended chan struct{} // closed after that
	log   string        // of the failpoints that have struck
}

// start returns a server that has been armed with fault. It ends with the test.
func start(t *testing.T, c settings, fault string) *process {
	t.Helper()
	encoded, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0]), said: make(chan string, maxLines), ended: make(chan struct{}), log: filepath.Join(t.TempDir(), "struck")}
	p.cmd.Env = append(os.Environ(), serverEnv+"="+string(encoded), "SAGAMILL_FAILPOINTS="+fault, "SAGAMILL_FAILPOINT_LOG="+p.log)
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
			p.count(lines.Text())
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

// A link is the way from a process to its store.
type link struct {
	listener net.Listener
	network  string
	server   string
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
	l := &link{listener: listener, network: network, server: addr, conns: make(map[net.Conn]bool)}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
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
			l.wg.Go(func() { pass(server, client) })
			l.wg.Go(func() { pass(client, server) })
		}
	}
}

// pass copies what comes from one end to the other, and closes both in the end.
func pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(to, from)
}
