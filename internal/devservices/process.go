package devservices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	stopTimeout = 10 * time.Second // from the signal to SIGKILL
	killTimeout = 10 * time.Second // from SIGKILL to giving up
	pipeTimeout = 5 * time.Second  // for grandchildren that keep a command's output open
	readyPause  = 20 * time.Millisecond

	startAttempts = 3   // of one server; each has other ports
	errorTail     = 600 // bytes of a server's output that go into an error
)

// A program is a command line and the account that it runs as.
type program struct {
	path string
	args []string
	env  []string // nil: ours
	dir  string
	as   *account // nil: ourselves
	usr  string   // what it sees in the place of /usr, see [debianTree]; "": this machine's. runProgram ignores it
}

// buildCommand returns p ready to start. Its credential also clears the supplementary groups, because the
// server would keep root's groups.
func (p program) buildCommand(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = p.env, p.dir, pipeTimeout
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	p.as.runAsAccount(cmd.SysProcAttr)
	return cmd
}

// runProgram runs p to its end and returns its output. The error holds the end of the output.
func (p program) runProgram(ctx context.Context, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout) // no command may hang the start
	defer cancel()
	cmd := p.buildCommand(ctx)
	out, err := cmd.CombinedOutput()
	name := filepath.Base(p.path)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not done after %v", timeout)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w%s", name, err, tailOfOutput(out))
	}
	return string(out), nil
}

// tailOfOutput returns the end of a program's output, for an error.
func tailOfOutput(out []byte) string {
	out = bytes.TrimSpace(out)
	if len(out) > errorTail {
		out = out[len(out)-errorTail:]
	}
	if len(out) == 0 {
		return ""
	}
	return ": " + strings.ToValidUTF8(string(out), "")
}

// serverEnvironment returns the environment of a server with its files in dir: little of ours, which may be meant for
// another server.
func serverEnvironment(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C"}
}

// A process is a server that ends with this process.
type process struct {
	pid  int
	log  string        // file with its output
	done chan struct{} // closed when it has been reaped
}

// startProgram starts p with its output in a file. It gets the signal death if this process dies. It runs in
// a new process group, because the Ctrl-C that stops a test would otherwise stop the database under it.
func (p program) startProgram(logFile string, death syscall.Signal) (*process, error) {
	out, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := p.buildCommand(context.Background())
	cmd.Stdout, cmd.Stderr = out, out
	LeadGroup(cmd.SysProcAttr)
	DieWithParent(cmd.SysProcAttr, death)

	started := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := forkThread(p.usr, func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			_ = cmd.Wait() // how a server ended is in its log
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return &process{pid: cmd.Process.Pid, log: logFile, done: done}, nil
}

// forkThread calls start, which starts a child and waits for its end, on a thread of its own. For the kernel this thread
// is the parent: it must not end before the child. The child sees the directory usr, if there is one, in the place of
// /usr. The thread is never unlocked, so that it ends with its view.
func forkThread(usr string, start func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := replaceUsr(usr)
		if err == nil {
			err = start()
		}
		done <- err
	}()
	return <-done
}

// A server is a private server to start, and how to find out that it answers.
type server struct {
	program
	name, mark string         // the latter is part of its command line
	stop       syscall.Signal // ends it at once: its data need not survive
	patience   time.Duration  // until it answers
	url        string
	probe      func(ctx context.Context, timeout time.Duration, url string) (what string, err error)
}

// startServer starts s, which ends with the run, and returns when it answers.
func (r *run) startServer(ctx context.Context, s server) (instance, error) {
	p, what, err := s.launchServer(ctx, r.dir)
	if err != nil {
		return instance{}, err
	}
	r.undoOnClose(func() error { return p.stopProcess(s.stop) })
	what = fmt.Sprintf("started %s from %s%s, pid %d", what, strings.TrimSuffix(s.usr, "/usr"), s.path, p.pid)
	return instance{url: s.url, what: what}, nil
}

// launchServer starts s with its log in files, and returns the description of the server when it answers.
func (s server) launchServer(ctx context.Context, files *rundir) (p *process, what string, err error) {
	if p, err = s.startProgram(filepath.Join(files.path, s.name+".log"), s.stop); err != nil {
		return nil, "", err
	}
	if err = files.recordProcess(p, s.mark); err == nil {
		err = p.awaitReady(ctx, s.patience, readyPause, func(ctx context.Context) error {
			what, err = s.probe(ctx, findTimeout, s.url)
			return err
		})
	}
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("%s: %w", s.name, err), p.stopProcess(s.stop))
	}
	return p, what, nil
}

// stopProcess sends sig to the whole group, and SIGKILL to processes of it that remain after a while. It
// returns when the process has been reaped.
func (p *process) stopProcess(sig syscall.Signal) error {
	if p.hasExited() {
		return nil
	}
	_ = SignalGroup(p.pid, sig)
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
	}
	_ = SignalGroup(p.pid, syscall.SIGKILL)
	select {
	case <-p.done:
		return nil
	case <-time.After(killTimeout):
		return fmt.Errorf("process %d has not ended %v after SIGKILL", p.pid, killTimeout)
	}
}

// hasExited reports whether the process has ended and been reaped. Another process may have its pid then.
func (p *process) hasExited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// errEnded reports a server that ended while it started, for example because its port was taken in the
// meantime. A second attempt may succeed. A server that hangs would only hang again.
var errEnded = errors.New("ended while starting")

// awaitReady calls ready until it succeeds, the process ends or timeout is over.
func (p *process) awaitReady(ctx context.Context, timeout, pause time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil || errors.Is(err, errRefused) {
			return err
		}
		select {
		case <-p.done:
			return fmt.Errorf("%w%s", errEnded, p.lastOutput())
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("not ready within %v: %w%s", timeout, err, p.lastOutput())
		case <-time.After(pause):
		}
	}
}

// attempts calls try until it succeeds, at most startAttempts times, as long as
// it fails with [errEnded].
func attempts(try func() (instance, error)) (instance, error) {
	var errs []error
	for range startAttempts {
		in, err := try()
		if err == nil {
			return in, nil
		}
		errs = append(errs, err)
		if !errors.Is(err, errEnded) {
			break
		}
	}
	return instance{}, errors.Join(errs...)
}

// lastOutput returns the end of what the server has printed.
func (p *process) lastOutput() string {
	out, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	return tailOfOutput(out)
}

// Ports are taken from below the range that the kernel gives to outgoing connections. Otherwise an outgoing
// connection could take a port while its process is dead or its link is cut.
const (
	firstPort    = 12000
	lastPort     = 31000
	portAttempts = 1000
)

// FreePorts returns n different ports of 127.0.0.1 on which no program listens.
func FreePorts(n int) (ports []int, err error) {
	seen := map[int]bool{}
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if seen[port] {
			continue
		}
		seen[port] = true
		listener, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return nil, err
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("services: no %d ports are free between %d and %d", n, firstPort, lastPort)
}

// freePort returns one of [FreePorts].
func freePort() (int, error) {
	ports, err := FreePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// accountTimeout bounds the trial run under another account.
const accountTimeout = 5 * time.Second

// An account is the operating system account of a server. The nil account is our account.
type account struct {
	name     string
	uid, gid int
}

// ownFile gives path to the account.
func (a *account) ownFile(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// writeFile writes a file that only the account may read, because it holds a password.
func (a *account) writeFile(path, content string) error {
	return errors.Join(os.WriteFile(path, []byte(content), 0o600), a.ownFile(path))
}

// unprivileged returns the first of names that exists and that this process may switch to. It returns nil
// without root's rights, because the process is unprivileged already. PostgreSQL refuses to run as root.
func unprivileged(ctx context.Context, names ...string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	var errs []error
	for _, name := range append(names, "nobody", "daemon") {
		a, err := lookUpAccount(name)
		if err == nil {
			// The user namespace of a container may not map the account. Only a trial shows that.
			_, err = program{path: "/bin/sh", args: []string{"-c", ":"}, dir: "/", as: a}.runProgram(ctx, accountTimeout)
		}
		if err == nil {
			return a, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no unprivileged account to run as: %w", errors.Join(errs...))
}

// lookUpAccount returns the account called name.
func lookUpAccount(name string) (*account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	return &account{name: name, uid: uid, gid: gid}, nil
}
