// Package profile writes the CPU profile of a benchmark.
package profile

import (
	"fmt"
	"os"
	"runtime/pprof"
)

// StartProfile profiles this process into the file at path until the function returned
// is called. If path is "", or cannot be written, which it says, there is none.
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
