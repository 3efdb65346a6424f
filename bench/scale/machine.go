package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"
)

// kernelTick is the unit of times in /proc/stat.
const kernelTick = 10 * time.Millisecond

// machineBusy returns the busy time of the machine, summed over all processors and programs. It is 0 on systems
// without /proc.
func machineBusy() (busy time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Scan()
	for i, field := range strings.Fields(lines.Text()) {
		ticks, err := strconv.Atoi(field)
		if err != nil || i == 4 || i == 5 || i > 8 { // the name; idle and iowait; guests, which user time includes
			continue
		}
		busy += time.Duration(ticks) * kernelTick
	}
	return busy
}
