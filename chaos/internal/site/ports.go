package site

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
)

// Ports are taken from below the range that the kernel gives to outgoing connections. Otherwise an outgoing
// connection could take a port while its process is dead or its link is cut.
const (
	firstPort    = 12000
	lastPort     = 31000
	portAttempts = 1000
)

// freePorts returns n different ports on which no program listens.
func freePorts(n int) (ports []int, err error) {
	seen := map[int]bool{}
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if seen[port] {
			continue
		}
		seen[port] = true
		listener, err := net.Listen("tcp", loopbackAddress(port))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return nil, err
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("site: no %d ports are free between %d and %d", n, firstPort, lastPort)
}

func loopbackAddress(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// established returns how many connections accepted on port are open.
func established(port int) (n int) {
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0 // systems without this file count none
	}
	defer file.Close()
	const open = "01"
	local := fmt.Sprintf("0100007F:%04X", port)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 3 && f[1] == local && f[3] == open {
			n++
		}
	}
	return n
}
