// Package proctime measures the processor time of a benchmark and its servers. It shows the cost of a message,
// besides its duration.
package proctime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kernelTick is the unit of times in /proc/PID/stat.
const kernelTick = 10 * time.Millisecond

// Usage is processor time by user. Client is this process and its living child processes of the same program.
type Usage struct{ Client, Database, Broker time.Duration }

// ReadUsage returns the processor time of this process and of the servers that it started, or that one of holders started:
// processes that keep servers for it. It is zero on systems without /proc.
func ReadUsage(holders ...int) (u Usage) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	parents, names, times := map[int]int{}, map[int]string{}, map[int]time.Duration{}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		var pid int
		_, _ = fmt.Sscan(string(text), &pid)
		open, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
		fields := strings.Fields(string(text[end+1:])) // state, ppid, …; utime and stime are the 12th and 13th
		if open < 0 || len(fields) < 13 {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		names[pid] = string(text[open+1 : end])
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		times[pid] = time.Duration(user+system) * kernelTick
	}
	for pid, used := range times {
		switch {
		case pid == os.Getpid():
			u.Client += used
		case !descendsFrom(parents, pid, append(holders, os.Getpid())):
		case names[pid] == "postgres":
			u.Database += used
		case names[pid] == "beam.smp":
			u.Broker += used
		case names[pid] == names[os.Getpid()]:
			u.Client += used
		}
	}
	return u
}

// descendsFrom reports whether pid is one of ancestors, or a descendant of one.
func descendsFrom(parents map[int]int, pid int, ancestors []int) bool {
	for ; pid > 1; pid = parents[pid] {
		if slices.Contains(ancestors, pid) {
			return true
		}
	}
	return false
}

// UsedSince returns the usage since before.
func (u Usage) UsedSince(before Usage) Usage {
	return Usage{u.Client - before.Client, u.Database - before.Database, u.Broker - before.Broker}
}

// AddUsage returns the sum of both usages.
func (u Usage) AddUsage(v Usage) Usage {
	return Usage{u.Client + v.Client, u.Database + v.Database, u.Broker + v.Broker}
}

// FormatEach returns the cost of one of n messages as text.
func (u Usage) FormatEach(n int) string {
	micros := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	return fmt.Sprintf("processor µs for each: client %.1f, database %.1f, broker %.1f", micros(u.Client), micros(u.Database), micros(u.Broker))
}
