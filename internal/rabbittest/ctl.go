package rabbittest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ctlTimeout bounds one command of the operator, which takes a second or two
// on a busy machine.
const ctlTimeout = time.Minute

// The watermarks of [Node.Block] and [Node.Unblock], as words of the command.
var (
	exhausted = []string{"set_vm_memory_high_watermark", "absolute", "1MB"} // the node itself needs more
	relaxed   = []string{"set_vm_memory_high_watermark", "0.4"}             // the broker's default
)

// Block raises the node's memory alarm: the broker stops reading from
// connections that publish, and tells them (connection.blocked). One that has
// not published yet is told with its first message.
func (n *Node) Block(t testing.TB) {
	t.Helper()
	n.Ctl(t, exhausted...)
}

// Unblock ends the alarm of [Node.Block].
func (n *Node) Unblock(t testing.TB) {
	t.Helper()
	n.Ctl(t, relaxed...)
}

// CloseConnections has the broker close every connection that there is, with
// reason: to a client it is CONNECTION_FORCED, 320. New ones are accepted.
func (n *Node) CloseConnections(t testing.TB, reason string) {
	t.Helper()
	n.Ctl(t, "close_all_connections", reason)
}

// Ctl runs a command of rabbitmqctl on the node and returns what it printed.
func (n *Node) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), ctlTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, filepath.Join(filepath.Dir(n.server), "rabbitmqctl"), append([]string{"--quiet", "--node", n.name}, args...)...)
	run.Dir = n.dir
	run.Env = n.environment() // its cookie is in its HOME
	// A group of its own: killing the shell script alone would leave Erlang.
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: n.owner}
	run.Cancel = func() error {
		err := syscall.Kill(-run.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("rabbitmqctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
