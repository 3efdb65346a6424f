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

// machineBusy returns how long the machine's processors have been busy with anything,
// summed over all of them. It is 0 where there is no /proc.
func machineBusy() (busy time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Scan()
	for i, field := range strings.Fields(lines.Text()) {
		ticks, err := strconv.Atoi(field)
		if err != nil || i == 4 || i == 5 || i > 8 { // its name; idle and waiting for disks; guests, which count as user
			continue
		}
		busy += time.Duration(ticks) * kernelTick
	}
	return busy
}
