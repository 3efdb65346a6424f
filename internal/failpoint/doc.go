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
// An error at a point behind an operation is what a caller sees of an operation
// that was carried out and failed to say so: do-then-error. [Points] says which
// those are.
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

// DefaultDelay is how long the action delay takes where no time is given: longer
// than the polls and batches of a running system, shorter than its leases.
const DefaultDelay = 300 * time.Millisecond

// OfTests begins the names of the points that a test has in code of its own, such as
// its handler. They are in no list.
const OfTests = "test/"

// A Point is a place at which a process may be struck.
type Point struct {
	Name string

	// Done is the operation right before the point, whose outcome is lost if the
	// process is struck there; empty: none.
	Done string
	Next string // the operation right behind the point, which is not begun
}

// Actions are what a point can do, beside error at a point with Done, which is
// called do-then-error.
func Actions() []string { return []string{"kill", "stop", "error", "delay"} }

// Struck returns what has triggered in the processes whose log is at path, a
// name=action each, in the order of the file; nothing while there is no file.
func Struck(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}
