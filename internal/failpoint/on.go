//go:build failpoints

package failpoint

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled tells a test whether the points are compiled in.
const Enabled = true

// ErrInjected is what the action error returns.
var ErrInjected = errors.New("failpoint: injected error")

// stopDelay is what the kernel may take to stop every thread. The process is
// stopped in the middle of it.
const stopDelay = 50 * time.Millisecond

type point struct {
	action string
	left   int // hits until it triggers
}

var (
	mu     sync.Mutex
	points = sync.OnceValue(func() map[string]*point { return parse(os.Getenv("SAGAMILL_FAILPOINTS")) })
)

// parse panics on what it does not understand: a test with a misspelt point
// would otherwise pass without its fault.
func parse(spec string) map[string]*point {
	armed := map[string]*point{}
	for entry := range strings.SplitSeq(spec, ";") {
		if entry == "" {
			continue
		}
		name, action, ok := strings.Cut(entry, "=")
		action, count, counted := strings.Cut(action, ":")
		p := &point{action: action, left: 1}
		if counted {
			n, err := strconv.Atoi(count)
			ok = ok && err == nil && n > 0
			p.left = n
		}
		if !ok || action != "kill" && action != "stop" && action != "error" {
			panic(fmt.Sprintf("failpoint: cannot read %q", entry))
		}
		armed[name] = p
	}
	return armed
}

// Hit triggers the action that name is armed with, if any.
func Hit(name string) error {
	mu.Lock()
	defer mu.Unlock()
	p := points()[name]
	if p == nil || p.left == 0 {
		return nil
	}
	if p.left--; p.left > 0 {
		return nil
	}
	switch p.action {
	case "kill":
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	case "stop":
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
		time.Sleep(stopDelay)
	case "error":
		return fmt.Errorf("%w at %s", ErrInjected, name)
	}
	return nil
}
