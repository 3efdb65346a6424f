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

// replaceUsr makes the directory usr take the place of /usr for the calling thread and its children. The thread gets a
// mount namespace of its own, which the kernel removes when the last of them has ended, even if it was killed.
func replaceUsr(usr string) error {
	if usr == "" {
		return nil
	}
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil { // or all would see it
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount(usr, "/usr", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s as /usr: %w", usr, err)
	}
	return nil
}

// commandLine returns the command line of pid, "" if there is none. Small
// images have no ps.
func commandLine(pid int) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
}
