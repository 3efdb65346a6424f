// Package failpoint names the places where a crash matters most: every commit
// boundary. With the build tag failpoints a test arms one of them from outside
// and sees what is true afterwards; without it [Hit] is an empty function that
// the compiler removes.
//
// A process is armed by its environment:
//
//	SAGAMILL_FAILPOINTS="consumer/after-commit=kill;outbox/after-publish=error:2"
//
// Each entry is name=action[:n], n being the hit that triggers (1 by default;
// every later hit passes). Actions:
//
//	kill   SIGKILL to the process itself: no deferred call runs, nothing is flushed
//	stop   SIGSTOP: the process hangs with its connections open until SIGCONT
//	error  Hit returns ErrInjected
//
// Do-then-error is the error action of the point behind the operation.
package failpoint
