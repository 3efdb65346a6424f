package rabbitnode

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports that are tried: those below which the kernel gives to connections, which come
// and go until a node listens.
const firstPort, lastPort = 15_000, 32_000

const portTries = 100

// reservePorts finds ports on which nobody listens, each another one. Until the holds are
// closed, no other node gets them, in other processes neither: it takes seconds until a node
// listens, and one that is killed is to find its ports free.
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

// reservePort takes the UDP port of that number, which is a node's sign for others: nodes speak
// TCP alone. The kernel gives it back with the process.
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
