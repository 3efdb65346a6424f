package pgservertest

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A frozen server is one whose processes are stopped.
type frozen struct {
	pids  []int
	thaws func() // continues them
}

// Freeze stops all processes of the server and leaves their connections open, like a machine that hangs,
// until [Server.Thaw], [Server.Kill] or [Server.Crash].
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	stopProcesses(t, s.process.Pid) // first: it starts the others
	pids := []int{s.process.Pid}
	for _, p := range processes(t) {
		if p.parent == s.process.Pid {
			pids = append(pids, p.pid)
		}
	}
	s.frozen = &frozen{pids: pids, thaws: thawProcesses(t, pids)}
	stopProcesses(t, pids...)
}

// Thaw continues a frozen server.
func (s *Server) Thaw() {
	if s.frozen != nil {
		s.frozen.thaws()
		s.frozen = nil
	}
}

// Kill ends the server like the loss of its machine: none of its processes writes or sends anything more. It
// returns when they have ended.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.frozen == nil {
		s.Freeze(t)
	}
	for _, pid := range s.frozen.pids[1:] {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	s.Crash() // the first process has nothing to write, and removes what would outlive a SIGKILL
}

// stopProcesses stops processes, and returns when they have stopped or ended.
func stopProcesses(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // an error if it has ended
	}
	running := func(p process) bool { return slices.Contains(pids, p.pid) && p.state != 'T' && p.state != 'Z' }
	for end := time.Now().Add(serverTimeout); slices.ContainsFunc(processes(t), running); pauseBriefly(t) {
		if time.Now().After(end) {
			t.Fatalf("processes %v have not stopped within %v", pids, serverTimeout)
		}
	}
}

// A process is a line of ps.
type process struct {
	pid, parent int
	state       byte
}

// processes lists the processes of the machine.
func processes(t testing.TB) (all []process) {
	t.Helper()
	list, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,state=").Output()
	if err != nil {
		t.Fatalf("list processes: %v", err)
	}
	for line := range strings.Lines(string(list)) {
		var p process
		var state string
		if _, err := fmt.Sscan(line, &p.pid, &p.parent, &state); err != nil {
			t.Fatalf("list processes: %q: %v", line, err)
		}
		p.state = state[0]
		all = append(all, p)
	}
	return all
}

// thawProcesses starts a process that continues those of pids when the returned function is called, or when
// this process dies: a stopped server could not end with it.
func thawProcesses(t testing.TB, pids []int) func() {
	t.Helper()
	cmd := exec.Command("sh", "-c", "cat; kill -CONT "+strings.Trim(fmt.Sprint(pids), "[]")+" 2> /dev/null")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // keeps an interrupt from the keyboard away from it
	open, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("start what continues the server: %v", err)
	}
	return func() {
		_ = open.Close()
		_ = cmd.Wait() // its status says that some have ended
	}
}
