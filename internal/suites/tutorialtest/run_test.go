package tutorialtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

// patience bounds what must come about, on a machine that has a lot else to do.
const patience = 5 * time.Minute

// address is the address of the services on the pages. Here the port is another.
const address = "127.0.0.1:8088"

var uuid = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// A reader who follows the tutorial of choreography gets its results.
func TestTutorial(t *testing.T) {
	t.Parallel()
	r := newReader(t, "taking orders at", map[string][]string{
		"orders": {"shipment.arranged", "payment.refunded"}, "payments": {"order.created", "shipment.rejected"}, "shipping": {"payment.processed"},
	})
	page := readPage(t, "tutorial-choreography.md")
	for _, old := range []string{`Prefix: "shop."`, `"prefix": "shop."`} {
		if strings.Count(page, old) != 1 {
			t.Fatalf("the page does not have %s once", old)
		}
		page = strings.Replace(page, old, strings.Replace(old, "shop.", r.namespace+".", 1), 1)
	}
	done := r.follow(page)
	for _, action := range []Action{Write, Run, Serve, Until, Output} {
		if done[action] == 0 {
			t.Errorf("the page has no block to %s", action)
		}
	}
}

// A reader who follows the tutorial of orchestration gets its results.
func TestTutorialOfOrchestration(t *testing.T) {
	t.Parallel()
	listens := map[string][]string{"trip": {"saga.trip"}, "ticketing": {"ticket.issue"}, "mail": {"mail.send"}}
	for _, service := range []string{"flight", "hotel", "car"} {
		listens[service] = []string{service + ".book", service + ".cancel"}
	}
	r := newReader(t, "msg=serving", listens)
	r.env = append(r.env, "TRIP_SAGA_NAMESPACE="+r.namespace)
	done := r.follow(readPage(t, "tutorial-orchestration.md"))
	for _, action := range []Action{Run, Serve, Until, Output} {
		if done[action] == 0 {
			t.Errorf("the page has no block to %s", action)
		}
	}
}

// root is the checkout.
const root = "../../.."

func readPage(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// A reader does what a page says, in an empty folder.
type reader struct {
	t         *testing.T
	dir       string // where the shell is
	address   string
	namespace string // of the queues
	serving   string // what the server prints when it serves
	env       []string
	server    *exec.Cmd
}

// newReader returns a reader in an empty folder. When the test ends, the queues of the services for the topics in listens
// are deleted.
func newReader(t *testing.T, serving string, listens map[string][]string) *reader {
	t.Helper()
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	r := &reader{t: t, dir: t.TempDir(), address: port.Addr().String(), namespace: strings.TrimSuffix(rabbittest.Name(), "-"), serving: serving}
	r.env = append(os.Environ(), "SAGAMILL="+checkout, "DATABASE_URL="+pgtest.Database(t), "AMQP_URL="+rabbittest.URL(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	r.removeQueues(listens) // in the end, when no service declares them any more
	t.Cleanup(r.kill)
	return r
}

// removeQueues has the queues and exchanges of the services deleted when the test ends.
func (r *reader) removeQueues(listens map[string][]string) {
	var queues, exchanges []string
	for service, topics := range listens {
		for _, topic := range topics {
			exchange := r.namespace + "." + topic
			exchanges = append(exchanges, exchange)
			queues = append(queues, exchange+"."+service, exchange+"."+service+".dead")
		}
	}
	rabbittest.Delete(r.t, queues, exchanges)
}

// follow does what a page says, and returns how many blocks it has of each action.
func (r *reader) follow(page string) map[Action]int {
	r.t.Helper()
	page = strings.ReplaceAll(page, address, r.address)
	if strings.Count(page, r.address) < 3 {
		r.t.Fatal("the page has another address")
	}
	blocks, err := Blocks(page)
	if err != nil {
		r.t.Fatal(err)
	}
	done := map[Action]int{}
	for i, b := range blocks {
		want := ""
		if i+1 < len(blocks) && blocks[i+1].Action == Output {
			want = blocks[i+1].Text
		}
		r.do(b, want)
		done[b.Action]++
	}
	return done
}

// do does the action of a block. want is the expected output of its command; empty: any output.
func (r *reader) do(b Block, want string) {
	r.t.Helper()
	switch b.Action {
	case Write:
		name := filepath.Join(r.dir, filepath.FromSlash(b.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(b.Text), 0o644); err != nil {
			r.t.Fatal(err)
		}
	case Run:
		got, err := r.shell(b.Text)
		if err != nil || want != "" && got != want {
			r.t.Fatalf("line %d: %v: %swant %s", b.Line, err, got, want)
		}
	case Until:
		r.until(b, want)
	case Serve:
		r.serve(b)
	}
}

// shell runs commands where those before have left the shell, and returns what they
// print, with ID for each id.
func (r *reader) shell(commands string) (string, error) {
	left := filepath.Join(r.t.TempDir(), "pwd")
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", "-euc", commands+`pwd >"$LEFT"`)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.dir, append(r.env, "LEFT="+left), &out, &out
	if r.server != nil {
		cmd.Env = append(cmd.Env, fmt.Sprintf("PID=%d", r.server.Process.Pid))
	}
	err := cmd.Run()
	if dir, problem := os.ReadFile(left); problem == nil {
		r.dir = strings.TrimSpace(string(dir))
	}
	return uuid.ReplaceAllString(out.String(), "ID"), err
}

// until runs a command until it prints what it should.
func (r *reader) until(b Block, want string) {
	r.t.Helper()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(patience); ; <-poll.C {
		got, err := r.shell(b.Text)
		if err == nil && want != "" && got == want {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("line %d: %v: %swant %s", b.Line, err, got, want)
		}
	}
}

// serve starts a command in the place of the one that a block before has started, and
// waits until it says that it serves.
func (r *reader) serve(b Block) {
	r.t.Helper()
	r.kill()
	said := &listener{word: r.serving, heard: make(chan struct{})}
	r.server = exec.Command("bash", "-euc", "exec "+b.Text)
	r.server.Dir, r.server.Env, r.server.Stdout, r.server.Stderr = r.dir, r.env, said, said
	r.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.server.Start(); err != nil {
		r.t.Fatalf("line %d: %v", b.Line, err)
	}
	select {
	case <-said.heard:
	case <-time.After(patience):
		r.t.Fatalf("line %d: it has not said %q: %s", b.Line, r.serving, said)
	}
}

// kill ends the server, if it has not ended.
func (r *reader) kill() {
	if r.server == nil {
		return
	}
	_ = r.server.Process.Kill()
	_ = r.server.Wait()
	r.server = nil
}

// A listener is a writer that waits for a word.
type listener struct {
	word  string
	heard chan struct{} // closed then

	mu  sync.Mutex
	all []byte
}

func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := bytes.Contains(l.all, []byte(l.word))
	l.all = append(l.all, p...)
	if !before && bytes.Contains(l.all, []byte(l.word)) {
		close(l.heard)
	}
	return len(p), nil
}

func (l *listener) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all)
}
