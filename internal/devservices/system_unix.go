//go:build unix

package devservices

import (
	"os"
	"syscall"
)

// runsPrivateServers reports whether this system can start servers for a run.
const runsPrivateServers = true

// runAsAccount makes a child with attr run as a. The nil account is this process's own.
func (a *account) runAsAccount(attr *syscall.SysProcAttr) {
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
}

// LeadGroup makes a child with attr the leader of a new process group. A Ctrl-C in the terminal does not reach it.
func LeadGroup(attr *syscall.SysProcAttr) { attr.Setpgid = true }

// SignalGroup sends sig to the process group that pid leads.
func SignalGroup(pid int, sig syscall.Signal) error { return syscall.Kill(-pid, sig) }

// freeBytes returns the free space of the file system at path, and 0 if that is unknown.
func freeBytes(path string) uint64 {
	var there syscall.Statfs_t
	if err := syscall.Statfs(path, &there); err != nil {
		return 0
	}
	return uint64(there.Bavail) * uint64(there.Bsize)
}

// lockFileOf locks f until it is closed, or returns an error if another process holds the lock.
func lockFileOf(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// isOwnedByUs reports whether the file of info belongs to this process's user.
func isOwnedByUs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
