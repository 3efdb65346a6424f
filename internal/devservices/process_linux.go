package devservices

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// DieWithParent makes the kernel send sig to the child when this process dies without running deferred code.
// For the kernel the parent is the thread that starts the child: the caller locks its goroutine to that
// thread until the child has ended.
func DieWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// commandLine returns the command line of pid, "" if there is none. Small
// images have no ps.
func commandLine(pid int) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
}
