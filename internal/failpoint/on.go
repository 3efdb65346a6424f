//go:build failpoints

package failpoint

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
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

// maxDelay is the longest delay: a longer one would be a stop.
const maxDelay = time.Minute

// A fuse is one entry of the environment.
type fuse struct {
	action string
	delay  time.Duration
	left   int // hits until it triggers
}

var (
	mu    sync.Mutex
	fuses = sync.OnceValue(func() map[string][]*fuse { return parse(os.Getenv("SAGAMILL_FAILPOINTS")) })
	log   = sync.OnceValue(func() *os.File { return openLog(os.Getenv("SAGAMILL_FAILPOINT_LOG")) })
)

// parse panics on an entry that it does not understand: a test with a misspelt point would otherwise pass
// without its fault.
func parse(spec string) map[string][]*fuse {
	armed := map[string][]*fuse{}
	for entry := range strings.SplitSeq(spec, ";") {
		if entry == "" {
			continue
		}
		name, f, err := parseEntry(entry)
		if err != nil {
			panic(fmt.Sprintf("failpoint: cannot read %q: %v", entry, err))
		}
		armed[name] = append(armed[name], f)
	}
	return armed
}

func parseEntry(entry string) (name string, f *fuse, err error) {
	name, action, _ := strings.Cut(entry, "=")
	if !strings.HasPrefix(name, OfTests) && !slices.ContainsFunc(points, func(p Point) bool { return p.Name == name }) {
		return "", nil, fmt.Errorf("there is no point %q", name)
	}
	f = &fuse{left: 1}
	action, count, counted := strings.Cut(action, ":")
	if counted {
		if f.left, err = strconv.Atoi(count); err != nil || f.left < 1 {
			return "", nil, fmt.Errorf("%q is no number of hits", count)
		}
	}
	f.action, action, _ = strings.Cut(action, "(")
	if !slices.Contains(Actions(), f.action) {
		return "", nil, fmt.Errorf("there is no action %q", f.action)
	}
	f.delay = DefaultDelay
	if length, ok := strings.CutSuffix(action, ")"); ok && f.action == "delay" {
		f.delay, err = time.ParseDuration(length)
		action = ""
	}
	if err != nil || action != "" || f.delay < 0 || f.delay > maxDelay {
		return "", nil, fmt.Errorf("want delay(d), up to %s", maxDelay)
	}
	return name, f, nil
}

func openLog(path string) *os.File {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(fmt.Sprintf("failpoint: SAGAMILL_FAILPOINT_LOG: %v", err))
	}
	return f
}

// Hit triggers the action that name is armed with, if any.
func Hit(name string) error {
	f := spend(name)
	if f == nil {
		return nil
	}
	switch f.action {
	case "kill":
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	case "stop":
		stop()
	case "delay":
		time.Sleep(f.delay)
	case "error":
		return fmt.Errorf("%w at %s", ErrInjected, name)
	}
	return nil
}

// stop returns when SIGCONT has continued the process. The kernel stops the process only when the thread that
// gets the signal runs, which can take long on a busy machine. This goroutine must not go on meanwhile.
func stop() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	<-continued
}

// spend counts a hit of name. If the hit triggers a fuse, spend writes that to the log and then returns the
// fuse.
func spend(name string) (hit *fuse) {
	mu.Lock()
	defer mu.Unlock()
	for _, f := range fuses()[name] {
		if f.left--; f.left == 0 {
			hit = f
		}
	}
	if hit != nil && log() != nil {
		fmt.Fprintf(log(), "%s=%s\n", name, hit.action)
	}
	return hit
}
