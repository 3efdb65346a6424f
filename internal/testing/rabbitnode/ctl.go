package rabbitnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ctlTimeout bounds one command of the operator. It takes a second or two on a busy machine.
const ctlTimeout = time.Minute

// The watermarks of [Node.Block] and [Node.Unblock].
const (
	exhausted = "vm_memory_monitor:set_vm_memory_high_watermark({absolute,1000000})" // the node itself needs more
	relaxed   = "vm_memory_monitor:set_vm_memory_high_watermark(0.4)"                // the broker's default
)

// The limits of free space of [Node.FillDisk] and [Node.FreeDisk], in bytes.
const (
	diskFull = "ok=rabbit_disk_monitor:set_disk_free_limit(1000000000000000000)" // no disk has an exabyte
	diskFree = "ok=rabbit_disk_monitor:set_disk_free_limit(50000000)"            // the broker's default
)

// Block raises the node's memory alarm: the broker stops reading from connections that publish, and tells
// them so (connection.blocked). A connection that has not published yet is blocked at its first message.
func (n *Node) Block() error {
	_, err := n.Eval(exhausted)
	return err
}

// Unblock ends the alarm of [Node.Block].
func (n *Node) Unblock() error {
	_, err := n.Eval(relaxed)
	return err
}

// FillDisk raises the node's disk alarm, as if its disk were full. To clients it is what
// [Node.Block] is.
func (n *Node) FillDisk() error {
	_, err := n.Eval(diskFull)
	return err
}

// FreeDisk ends the alarm of [Node.FillDisk].
func (n *Node) FreeDisk() error {
	_, err := n.Eval(diskFree)
	return err
}

// CloseConnections makes the broker close all connections, and returns their number. A client sees
// CONNECTION_FORCED, 320, with reason. The broker accepts new ones.
//
// RabbitMQ 4.3 does not list a node among the running ones until its boot has ended, which is after it accepts
// connections. Until then connections() is empty, so the node's own are added.
func (n *Node) CloseConnections(reason string) (int, error) {
	out, err := n.Eval(fmt.Sprintf(`C=lists:usort(rabbit_networking:connections()++rabbit_networking:local_connections()),[catch rabbit_networking:close_connection(P,%q)||P<-C],length(C)`, reason))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// Sync writes the registries that the node keeps in memory for minutes to its files, so that even a new queue
// outlives [Node.Kill].
func (n *Node) Sync() error {
	_, err := n.Eval("[dets:sync(T)||T<-dets:all()],ok")
	return err
}

// Eval evaluates Erlang expressions, without the full stop, in the node and returns the value of the last
// one. If Erlang has its C interface, it takes some ten milliseconds, else a second. Like rabbitmqctl it waits
// for a node that accepts connections, but whose application is not running yet.
func (n *Node) Eval(expressions string) (string, error) {
	call := n.rabbit.Program("erl_call")
	cookie, err := os.ReadFile(n.cookieFile())
	if call == "" || err != nil {
		out, err := n.Ctl("eval", expressions+".")
		return strings.TrimSpace(out), err
	}
	evaluate := func(expressions string) (value, out string, err error) {
		out, err = n.runTool(strings.NewReader(fmt.Sprintf("{evaluated,begin %s end}.\n", expressions)), call, "-sname", n.name, "-c", strings.TrimSpace(string(cookie)), "-e")
		value, good := strings.CutPrefix(strings.TrimSpace(out), "{ok, {evaluated,")
		if err == nil && !good { // a bad expression is not an error of erl_call
			err = errors.New("it cannot be evaluated")
		}
		return strings.TrimSpace(strings.TrimSuffix(value, "}}")), out, err
	}
	deadline := time.Now().Add(ctlTimeout)
	for try := 1; ; try++ {
		value, out, err := evaluate(expressions)
		if err == nil {
			return value, nil
		}
		if strings.Contains(out, noHandshake) && try < handshakes {
			continue // nothing was evaluated
		}
		if strings.Contains(out, noProcess) && time.Now().Before(deadline) {
			if running, _, err := evaluate("rabbit:is_running()"); err == nil && running == "false" {
				continue
			}
		}
		return "", fmt.Errorf("rabbitnode: evaluate %s: %w: %s", expressions, err, out)
	}
}

// noHandshake is what erl_call says of a node that is not there, or too busy to shake hands in time. It is tried handshakes
// times.
const (
	noHandshake = "failed to connect to node"
	handshakes  = 5
)

// noProcess is Erlang's error for a call of a process that does not exist, such as one of an application that is not
// running.
const noProcess = "noproc"

// stillStarts is the error of rabbitmqctl for a node that accepts connections already, but no commands yet.
const stillStarts = "requires the 'rabbit' app to be running"

// Ctl runs a command of rabbitmqctl on the node and returns its output. The command gets no input: that of Debian's
// RabbitMQ 4.3 fails to read a password from a pipe.
func (n *Node) Ctl(args ...string) (string, error) {
	path, line := filepath.Join(filepath.Dir(n.rabbit.Server), "rabbitmqctl"), append([]string{"--quiet", "--node", n.name}, args...)
	for deadline := time.Now().Add(ctlTimeout); ; {
		out, err := n.runTool(strings.NewReader(""), path, line...)
		if err == nil {
			return out, nil
		}
		if !strings.Contains(out, stillStarts) || time.Now().After(deadline) {
			return "", fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
}

// runTool runs a program that speaks to the node and returns its output.
func (n *Node) runTool(input *strings.Reader, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), ctlTimeout)
	defer cancel()
	run := exec.CommandContext(ctx, path, args...)
	run.Dir = n.dir
	run.Env = n.environment() // its cookie is in its HOME
	if input != nil {
		run.Stdin = input
	}
	// A new group, because killing the shell script alone would leave Erlang.
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: n.owner}
	run.Cancel = func() error {
		err := syscall.Kill(-run.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	var out []byte
	err := n.rabbit.Fork(func() (err error) {
		out, err = run.CombinedOutput()
		return err
	})
	return string(out), err
}
