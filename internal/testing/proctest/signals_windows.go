package proctest

import "syscall"

// The signals of [Process.Stop] and [Process.Continue]. Windows has neither: sending one fails, and the caller panics.
const (
	suspend = syscall.Signal(0x13)
	resume  = syscall.Signal(0x12)
)
