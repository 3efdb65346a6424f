package rabbitcluster

import (
	"errors"
	"net"
	"sync"
)

// linkBuffer is how many bytes a link reads at once. A cut direction holds at most these and the buffers of
// the sockets.
const linkBuffer = 64 << 10

// A network is the state that the links between all nodes share: the directions that are cut.
type network struct {
	mu      sync.Mutex
	changed *sync.Cond // of cut and closed
	cut     [Size][Size]bool
	closed  bool
}

func newNetwork() *network {
	n := new(network)
	n.changed = sync.NewCond(&n.mu)
	return n
}

// changeCuts calls set to change the cut directions.
func (n *network) changeCuts(set func(cut *[Size][Size]bool)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	set(&n.cut)
	n.changed.Broadcast()
}

// isJoined reports whether bytes go both ways between two nodes.
func (n *network) isJoined(a, b int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.cut[a][b] && !n.cut[b][a]
}

// awaitJoined returns once bytes pass from one node to another: at once, unless the direction is
// cut. It returns false if the network is closed.
func (n *network) awaitJoined(from, to int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.cut[from][to] && !n.closed {
		n.changed.Wait()
	}
	return !n.closed
}

func (n *network) closeNetwork() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.changed.Broadcast()
}

// A link carries the connections that one node opens to another.
type link struct {
	network  *network
	from, to int
	target   func() string // the address of the other node; empty: it does not run
	listener *net.TCPListener
	work     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // both sides of each; nil: closed
}

// listenForLink starts a link on a port of 127.0.0.1.
func listenForLink(network *network, from, to int, target func() string) (*link, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	l := &link{network: network, from: from, to: to, target: target, listener: listener, conns: make(map[net.Conn]struct{})}
	l.work.Go(l.acceptConnections)
	return l, nil
}

// listenPort returns the port of the link.
func (l *link) listenPort() uint16 { return uint16(l.listener.Addr().(*net.TCPAddr).Port) }

// closeLink ends the link and its connections. The caller has closed the network.
func (l *link) closeLink() {
	l.listener.Close()
	l.mu.Lock()
	for conn := range l.conns {
		conn.Close()
	}
	l.conns = nil
	l.mu.Unlock()
	l.work.Wait()
}

// keepConnection makes close end conn. It returns false if the link is closed already.
func (l *link) keepConnection(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		return false
	}
	l.conns[conn] = struct{}{}
	return true
}

func (l *link) dropConnection(conn net.Conn) {
	conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
}

func (l *link) acceptConnections() {
	for {
		conn, err := l.listener.AcceptTCP()
		if err != nil {
			return
		}
		if !l.keepConnection(conn) {
			conn.Close()
			return
		}
		l.work.Go(func() { l.carryConnection(conn) })
	}
}

// carryConnection forwards both ways until both ends have closed their direction.
func (l *link) carryConnection(near *net.TCPConn) {
	defer l.dropConnection(near)
	far, err := l.dialTarget()
	if err != nil {
		return
	}
	defer l.dropConnection(far)
	if !l.keepConnection(far) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.forwardBytes(far, near, l.from, l.to) })
	both.Go(func() { l.forwardBytes(near, far, l.to, l.from) })
	both.Wait()
}

// errCut reports that a connection was opened while the network was cut.
var errCut = errors.New("rabbitcluster: the network was cut when the connection was opened")

// dialTarget connects to the other node. It does not make a connection that a cut has delayed: the node has
// given it up, or tries again.
func (l *link) dialTarget() (*net.TCPConn, error) {
	if !l.network.isJoined(l.from, l.to) {
		if l.network.awaitJoined(l.from, l.to) {
			l.network.awaitJoined(l.to, l.from)
		}
		return nil, errCut
	}
	far, err := net.Dial("tcp", l.target())
	if err != nil {
		return nil, err
	}
	return far.(*net.TCPConn), nil
}

// forwardBytes copies the bytes of one node to another, and their end. While the direction is cut it keeps
// the bytes that it has and reads no more.
func (l *link) forwardBytes(dst, src *net.TCPConn, from, to int) {
	buffer := make([]byte, linkBuffer)
	for {
		n, err := src.Read(buffer)
		if !l.network.awaitJoined(from, to) {
			return
		}
		if n > 0 {
			if _, writeErr := dst.Write(buffer[:n]); writeErr != nil {
				return // the other direction carries the end
			}
		}
		if err != nil { // io.EOF, or the node was killed
			dst.CloseWrite()
			return
		}
	}
}
