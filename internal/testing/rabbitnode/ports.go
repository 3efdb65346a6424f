package rabbitnode

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range of ports to try. It is below the range that the kernel gives to connections, which may take a
// port before the node listens.
const firstPort, lastPort = 15_000, 32_000

const portTries = 100

// reservePorts finds different free ports. Until the holds are closed, no other node gets them, in other
// processes either: a node listens only after seconds, and a killed node must find its ports free.
func reservePorts(ports ...*int) (holds []io.Closer, err error) {
	for _, port := range ports {
		var hold io.Closer
		for try := 0; hold == nil && try < portTries; try++ {
			*port = firstPort + rand.IntN(lastPort-firstPort)
			hold, err = reservePort(*port)
		}
		if hold == nil {
			for _, hold := range holds {
				_ = hold.Close()
			}
			return nil, err
		}
		holds = append(holds, hold)
	}
	return holds, nil
}

// reservePort takes the UDP port of that number, which marks the port as reserved for a node: nodes use TCP
// alone. The kernel releases it at the end of the process.
func reservePort(port int) (hold io.Closer, err error) {
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	sign, err := net.ListenPacket("udp", at)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", at)
	if err == nil {
		err = listener.Close()
	}
	if err != nil {
		return nil, errors.Join(err, sign.Close())
	}
	return sign, nil
}
