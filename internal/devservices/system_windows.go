package devservices

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// runsPrivateServers reports whether this system can start servers for a run. Windows has no process groups that a
// signal ends and no accounts to switch to, so the servers are those of DATABASE_URL or of this machine.
const runsPrivateServers = false

// runAsAccount does nothing: no account is ever chosen here.
func (a *account) runAsAccount(*syscall.SysProcAttr) {}

// LeadGroup makes a child with attr the leader of a new process group. A Ctrl-C in the console does not reach it.
func LeadGroup(attr *syscall.SysProcAttr) { attr.CreationFlags |= syscall.CREATE_NEW_PROCESS_GROUP }

// SignalGroup ends pid and the processes that it has started, whatever the signal: Windows has none.
func SignalGroup(pid int, _ syscall.Signal) error {
	return exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(pid)).Run()
}

// freeBytes returns 0: no file system here is in memory.
func freeBytes(string) uint64 { return 0 }

// lockFileOf refuses: only a run with private servers has a directory to lock.
func lockFileOf(*os.File) error { return errors.ErrUnsupported }

// isOwnedByUs reports false, so that no sweep acts on a directory.
func isOwnedByUs(os.FileInfo) bool { return false }
