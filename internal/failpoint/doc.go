// Package failpoint names the places where a crash matters most: every commit
// boundary. With the build tag failpoints a test arms some of them from outside
// and sees what is true afterwards; without it [Hit] is an empty function that
// the compiler removes.
//
// A process is armed by its environment:
//
//	SAGAMILL_FAILPOINTS="consumer/after-commit=kill;outbox/after-publish=error:2;effect/after-call=delay(300ms):7"
//
// Each entry is name=action[:n], n being the hit that triggers (1 by default;
// every later hit passes). A name may have several entries. Actions:
//
//	kill        SIGKILL to the process itself: no deferred call runs, nothing is flushed
//	stop        SIGSTOP: the process hangs with its connections open until SIGCONT
//	error       Hit returns ErrInjected
//	delay(d)    Hit returns after d; without (d) after DefaultDelay
//
// At a point behind an operation, the action error makes an operation that was carried out look failed to its
// caller. This is called do-then-error. [Point].Done names the operation.
//
// SAGAMILL_FAILPOINT_LOG names a file to which each point that triggers appends
// a line, name=action, before its action. Processes may share one. [Struck] reads it.
package failpoint

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"
)

// DefaultDelay is the time of the action delay without d. It is longer than the polls and batches of a
// running system, and shorter than its leases.
const DefaultDelay = 300 * time.Millisecond

// OfTests is the prefix of the points in the code of tests, such as their handlers. [Points] does not list
// those.
const OfTests = "test/"

// A Point is a place at which a process may be struck.
type Point struct {
	Name string

	// Done is the operation right before the point. Its outcome is lost if the process is struck there.
	// Empty: none.
	Done string
	Next string // the operation right behind the point, not begun yet
}

// Actions lists the actions of a point. The action error at a point with Done is called do-then-error.
func Actions() []string { return []string{"kill", "stop", "error", "delay"} }

// Struck returns the points that have triggered in the processes whose log is at path, each as name=action,
// in the order of the file. It returns nothing if there is no file.
func Struck(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}
