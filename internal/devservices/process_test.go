package devservices

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const waitTimeout = time.Minute // for what should happen at once

func shell(script string) program {
	return program{path: "/bin/sh", args: []string{"-c", script}}
}

func start(t *testing.T, p program) *process {
	t.Helper()
	proc, err := p.startProgram(filepath.Join(t.TempDir(), "log"), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proc.stopProcess(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	return proc
}

// gone reports whether no process has this pid: after it was reaped.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestStopEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	// The grandchild holds the fifo open for as long as it lives.
	p := start(t, shell("sleep 600 > "+fifo+" & wait"))
	reader, err := os.Open(fifo) // waits for the grandchild
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := p.stopProcess(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !gone(p.pid) {
		t.Errorf("process %d is still there", p.pid)
	}
	if err := reader.SetReadDeadline(time.Now().Add(waitTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the grandchild is still there")
	}
}

// A server that dies while starting is noticed at once and its last words are
// in the error.
func TestAwaitEndedProcess(t *testing.T) {
	t.Parallel()
	p := start(t, shell("echo port taken; exit 1"))
	never := func(context.Context) error { return errors.New("not yet") }
	err := p.awaitReady(t.Context(), waitTimeout, time.Millisecond, never)
	if err == nil || !strings.Contains(err.Error(), "ended while starting: port taken") {
		t.Errorf("await = %v, want the process's end and its output", err)
	}
}

func TestAwaitTimeout(t *testing.T) {
	t.Parallel()
	p := start(t, shell("sleep 600"))
	notYet := errors.New("not yet")
	err := p.awaitReady(t.Context(), time.Millisecond, time.Millisecond, func(context.Context) error { return notYet })
	if !errors.Is(err, notYet) || !strings.Contains(err.Error(), "not ready within 1ms") {
		t.Errorf("await = %v, want the timeout and %v", err, notYet)
	}
}

// A command whose child keeps its output open must not be waited for.
func TestRunTimeout(t *testing.T) {
	t.Parallel()
	_, err := shell("echo begun; sleep 600").runProgram(t.Context(), 100*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "not done after 100ms") {
		t.Errorf("run = %v, want its timeout", err)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	live, err := newRundir(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer live.lock.Close()
	dead, err := newRundir(parent)
	if err != nil {
		t.Fatal(err)
	}
	server := start(t, shell("sleep 600 # "+dead.path))
	stranger := start(t, shell("sleep 600 # of somebody else, to whom the pid went"))
	for _, p := range []*process{server, stranger} {
		if err := dead.recordProcess(p, dead.path); err != nil {
			t.Fatal(err)
		}
	}
	if err := dead.lock.Close(); err != nil { // as the kernel does for a dead run
		t.Fatal(err)
	}

	// A child that another test has just forked holds a copy of the lock until
	// its exec closes it, which Linux does after it has let the parent go on: a
	// sweep at that moment leaves the run to the next one, as it should.
	for deadline := time.Now().Add(waitTimeout); fileExists(dead.path) && time.Now().Before(deadline); {
		sweepAbandoned(parent)
	}

	if fileExists(dead.path) {
		t.Errorf("the dead run's directory is still there")
	}
	if !fileExists(live.path) {
		t.Errorf("the living run's directory is gone")
	}
	select {
	case <-server.done:
	case <-time.After(waitTimeout):
		t.Errorf("the dead run's server is still there")
	}
	if stranger.hasExited() {
		t.Errorf("a process that was not the run's has been killed")
	}
}

func TestUnprivileged(t *testing.T) {
	t.Parallel()
	as, err := unprivileged(t.Context(), "no-such-account")
	if err != nil {
		t.Fatal(err)
	}
	if root := os.Geteuid() == 0; root != (as != nil) {
		t.Fatalf("unprivileged = %v as uid %d", as, os.Geteuid())
	}
	id, err := program{path: "/usr/bin/id", args: []string{"-u"}, dir: "/", as: as}.runProgram(t.Context(), waitTimeout)
	if err != nil || strings.TrimSpace(id) == "0" {
		t.Errorf("id -u = %q, %v; want an unprivileged one", id, err)
	}
}
