//go:build unix

package proctest

import "syscall"

// The signals of [Process.Stop] and [Process.Continue].
const (
	suspend = syscall.SIGSTOP
	resume  = syscall.SIGCONT
)
