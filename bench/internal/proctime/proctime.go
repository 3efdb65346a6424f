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
	all := map[int]process{}
	for _, path := range stats {
		if text, err := os.ReadFile(path); err == nil { // else it has ended
			p := parseStat(string(text))
			all[p.pid] = p
		}
	}
	for pid, p := range all {
		switch {
		case pid == os.Getpid():
			u.Client += p.used
		case !descendsFrom(all, pid, append(holders, os.Getpid())):
		case p.name == "postgres":
			u.Database += p.used
		case p.name == "beam.smp":
			u.Broker += p.used
		case p.name == all[os.Getpid()].name:
			u.Client += p.used
		}
	}
	return u
}

// ReadProcesses returns the processor time of processes that run. It is zero on systems without /proc.
func ReadProcesses(pids ...int) (sum time.Duration) {
	for _, pid := range pids {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			sum += parseStat(string(text)).used
		}
	}
	return sum
}

// A process is what /proc/PID/stat tells.
type process struct {
	pid, parent int
	name        string
	used        time.Duration
}

// parseStat parses the text of /proc/PID/stat. It returns the zero process for a text that is none.
func parseStat(text string) (p process) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return process{}
	}
	fields := strings.Fields(text[end+1:]) // state, ppid, …; utime and stime are the 12th and 13th
	if len(fields) < 13 {
		return process{}
	}
	p.pid, _ = strconv.Atoi(strings.TrimSpace(text[:open]))
	p.parent, _ = strconv.Atoi(fields[1])
	p.name = text[open+1 : end]
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	p.used = time.Duration(user+system) * kernelTick
	return p
}

// descendsFrom reports whether pid is one of ancestors, or a descendant of one.
func descendsFrom(all map[int]process, pid int, ancestors []int) bool {
	for ; pid > 1; pid = all[pid].parent {
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
