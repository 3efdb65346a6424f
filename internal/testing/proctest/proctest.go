// Package proctest runs a server as a separate process, so that a test can kill it or stop it at any moment.
// The program is the test binary itself: an environment variable makes its TestMain call [Serve].
package proctest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/internal/devservices"
)

const (
	startTimeout  = 20 * time.Second
	headerTimeout = 10 * time.Second
)

// A Process is a process that runs [Serve]. It ends with this process at the latest, in any state.
type Process struct {
	URL   string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed once it has been waited for
}

// Start runs cmd, whose main calls [Serve], and waits for its address. After an
// error nothing runs.
func Start(cmd *exec.Cmd) (*Process, error) {
	read, write, err := os.Pipe() // not StdoutPipe, which Wait would close under the reader
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd.Stdout = write
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	p, err := Launch(cmd)
	_ = write.Close()
	if err != nil {
		return nil, err
	}
	_ = read.SetReadDeadline(time.Now().Add(startTimeout))
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("proctest: the process did not say its address: %w", err)
	}
	p.URL = "http://" + strings.TrimSpace(line)
	return p, nil
}

// Launch runs any cmd and waits for nothing. After an error nothing runs.
func Launch(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.launch(); err != nil {
		return nil, fmt.Errorf("proctest: start: %w", err)
	}
	return p, nil
}

// launch starts the process from a thread that lives as long as the process.
func (p *Process) launch() error {
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	devservices.DieWithParent(p.cmd.SysProcAttr, syscall.SIGKILL) // a stopped one would not see its standard input end
	started := make(chan error, 1)
	go func() { // ends with the process
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := p.cmd.Start()
		if started <- err; err == nil {
			_ = p.cmd.Wait()
		}
	}()
	return <-started
}

// Stop stops the process, with its connections open, until Continue.
func (p *Process) Stop() { p.signal(suspend) }

// Continue ends the effect of Stop.
func (p *Process) Continue() { p.signal(resume) }

func (p *Process) signal(s os.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(fmt.Sprintf("proctest: signal our own child: %v", err))
	}
}

// Stopped reports whether the process with that id is stopped by a signal. The signal takes a moment to reach
// all of its threads.
func Stopped(pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.HasPrefix(string(state), "T")
}

// Stopped is the function [Stopped] for p.
func (p *Process) Stopped() bool { return Stopped(p.cmd.Process.Pid) }

// Kill ends the process at once and waits for it, also while it is stopped.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
	_ = p.stdin.Close()
}

// Terminate asks the process to end, as a deployment does. See Wait.
func (p *Process) Terminate() { p.signal(syscall.SIGTERM) }

// Wait waits until the process has ended, or for limit, and returns its exit
// code: -1 if it was killed or has not ended.
func (p *Process) Wait(limit time.Duration) int {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.ended:
		_ = p.stdin.Close()
		return p.cmd.ProcessState.ExitCode()
	case <-timer.C:
		return -1
	}
}

// Dead reports whether the process has ended.
func (p *Process) Dead() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Serve listens on the loopback, prints its address on one line of standard output and serves h until
// standard input ends.
func Serve(h http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("proctest: listen: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // ends with Close, below
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	err = errors.Join(err, server.Close())
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}
