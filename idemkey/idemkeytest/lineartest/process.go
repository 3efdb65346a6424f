package lineartest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// startTimeout bounds the start of an instance.
const startTimeout = 20 * time.Second

// An instance is a process that runs [Serve].
type instance struct {
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
	fault string        // what it was armed with
	ended chan struct{} // closed once it has been waited for
}

// start runs command and waits for its address.
func start(command func(fault string) *exec.Cmd, fault string) (*instance, error) {
	in := &instance{cmd: command(fault), fault: fault, ended: make(chan struct{})}
	stdin, err := in.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	in.stdin = stdin
	read, write, err := os.Pipe() // not StdoutPipe, which Wait would close under the reader
	if err != nil {
		return nil, err
	}
	defer read.Close()
	in.cmd.Stdout, in.cmd.Stderr = write, os.Stderr
	err = in.cmd.Start()
	_ = write.Close()
	if err != nil {
		return nil, fmt.Errorf("lineartest: start instance: %w", err)
	}
	go func() { // ends with the process
		_ = in.cmd.Wait()
		close(in.ended)
	}()
	_ = read.SetReadDeadline(time.Now().Add(startTimeout))
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		in.kill()
		return nil, fmt.Errorf("lineartest: instance did not say its address: %w", err)
	}
	in.url = "http://" + strings.TrimSpace(line)
	return in, nil
}

func (in *instance) signal(s os.Signal) {
	if err := in.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(fmt.Sprintf("lineartest: signal our own child: %v", err))
	}
}

// kill ends the process at once and waits for it, also while it is stopped.
func (in *instance) kill() {
	in.signal(syscall.SIGKILL)
	<-in.ended
	_ = in.stdin.Close()
}

// dead reports whether the process has ended.
func (in *instance) dead() bool {
	select {
	case <-in.ended:
		return true
	default:
		return false
	}
}
