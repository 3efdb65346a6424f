// Package proctime tells how long a benchmark and its servers have been on the
// processors, so that what a message costs is known besides how long it takes.
package proctime

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// kernelTick is the unit of times in /proc/PID/stat.
const kernelTick = 10 * time.Millisecond

// Usage is processor time by who used it. The client is this process and those of
// the same program that it has started and that have not ended.
type Usage struct{ Client, Database, Broker time.Duration }

// ReadUsage reads what this process and the servers that it started have used so
// far. It is zero where there is no /proc.
func ReadUsage() (u Usage) {
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
		case !descendsFromUs(parents, pid):
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

// descendsFromUs reports whether pid is a descendant of this process.
func descendsFromUs(parents map[int]int, pid int) bool {
	for ; pid > 1; pid = parents[pid] {
		if pid == os.Getpid() {
			return true
		}
	}
	return false
}

// UsedSince returns what was used since before was read.
func (u Usage) UsedSince(before Usage) Usage {
	return Usage{u.Client - before.Client, u.Database - before.Database, u.Broker - before.Broker}
}

// AddUsage returns what was used in both.
func (u Usage) AddUsage(v Usage) Usage {
	return Usage{u.Client + v.Client, u.Database + v.Database, u.Broker + v.Broker}
}

// FormatEach says what one of n messages has cost.
func (u Usage) FormatEach(n int) string {
	micros := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	return fmt.Sprintf("processor µs for each: client %.1f, database %.1f, broker %.1f", micros(u.Client), micros(u.Database), micros(u.Broker))
}
