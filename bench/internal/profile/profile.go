// Package profile writes the CPU profile of a benchmark.
package profile

import (
	"fmt"
	"os"
	"runtime/pprof"
)

// StartProfile writes a CPU profile of this process to the file at path until stop is called. If path is "" it
// does nothing. If it cannot write the file it prints an error and does not profile.
func StartProfile(path string) (stop func()) {
	if path == "" {
		return func() {}
	}
	f, err := os.Create(path)
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return func() {}
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}
}
