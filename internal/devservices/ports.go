package devservices

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are taken from below the range that the kernel gives to outgoing connections. Otherwise an outgoing
// connection could take a port while its process is dead or its link is cut.
const (
	firstPort    = 12000
	lastPort     = 31000
	portAttempts = 1000
)

// FreePorts returns n different ports of 127.0.0.1 on which no program listens.
func FreePorts(n int) (ports []int, err error) {
	seen := map[int]bool{}
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if seen[port] {
			continue
		}
		seen[port] = true
		listener, err := net.Listen("tcp", loopback(port))
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
	return nil, fmt.Errorf("services: no %d ports are free between %d and %d", n, firstPort, lastPort)
}

// freePort returns one of [FreePorts].
func freePort() (int, error) {
	ports, err := FreePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}
