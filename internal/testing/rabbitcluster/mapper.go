package rabbitcluster

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
)

// The messages of Erlang's port mapper that nodes and their tools send. The protocol is
// described in https://www.erlang.org/doc/apps/erts/erl_dist_protocol.html.
const (
	namesRequest  = 110 // the names that are registered
	aliveResponse = 118 // to aliveRequest, with a creation of 4 bytes
	portResponse  = 119 // to portRequest
	aliveRequest  = 120 // registers a name for as long as the connection is open
	oldAliveReply = 121 // to aliveRequest of a node that knows creations of 2 bytes only
	portRequest   = 122 // the port of a name
	wideCreation  = 6   // the first version of the protocol with a creation of 4 bytes
	firstCreation = 4   // smaller ones have another meaning
	normalNode    = 77  // the kind of a node that is not hidden
	aliveHeader   = 10  // bytes of aliveRequest before the name
)

// A registration is the data that a node has registered.
type registration struct {
	name          string
	port          uint16
	kind, proto   byte
	highest, last uint16 // versions of the protocol
	extra         []byte
	creation      uint32
}

// A mapper is the port mapper of one node.
type mapper struct {
	listener net.Listener
	peer     func(name string) *registration // answers for a name that is not registered; nil: there is none
	names    func() []*registration          // those for which peer answers
	work     sync.WaitGroup

	mu    sync.Mutex
	own   map[string]*registration
	conns map[net.Conn]struct{} // nil: closed
}

// newMapper returns a mapper with a port of 127.0.0.1, which answers when it is started.
func newMapper(peer func(name string) *registration, names func() []*registration) (*mapper, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &mapper{listener: listener, peer: peer, names: names, own: make(map[string]*registration), conns: make(map[net.Conn]struct{})}
	return m, nil
}

// startMapper starts the mapper.
func (m *mapper) startMapper() { m.work.Go(m.acceptConnections) }

// listenPort returns the port of the mapper.
func (m *mapper) listenPort() int { return m.listener.Addr().(*net.TCPAddr).Port }

// registered returns the registration of the node called name, or nil if it does not run.
func (m *mapper) registered(name string) *registration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own[name]
}

// closeMapper ends the mapper and its connections.
func (m *mapper) closeMapper() {
	m.listener.Close()
	m.mu.Lock()
	for conn := range m.conns {
		conn.Close()
	}
	m.conns = nil
	m.mu.Unlock()
	m.work.Wait()
}

func (m *mapper) acceptConnections() {
	for {
		conn, err := m.listener.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		open := m.conns != nil
		if open {
			m.conns[conn] = struct{}{}
			m.work.Go(func() { m.serveConnection(conn) })
		}
		m.mu.Unlock()
		if !open {
			conn.Close()
		}
	}
}

// serveConnection answers the one request of conn.
func (m *mapper) serveConnection(conn net.Conn) {
	defer func() {
		conn.Close()
		m.mu.Lock()
		delete(m.conns, conn)
		m.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	request, err := readRequest(in)
	if err != nil || len(request) == 0 {
		return
	}
	switch body := request[1:]; request[0] {
	case aliveRequest:
		m.register(conn, in, body)
	case portRequest:
		_, _ = conn.Write(m.lookUpNode(string(body)))
	case namesRequest:
		_, _ = conn.Write(m.listNodes())
	}
}

// readRequest reads a request, which its length precedes.
func readRequest(in io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return nil, err
	}
	request := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(in, request)
	return request, err
}

// register registers the node of an aliveRequest until its connection ends.
func (m *mapper) register(conn net.Conn, in io.Reader, body []byte) {
	r := parseAlive(body)
	if r == nil {
		return
	}
	r.creation = firstCreation + rand.Uint32N(1<<31)
	m.mu.Lock()
	taken := m.own[r.name] != nil
	if !taken {
		m.own[r.name] = r
	}
	m.mu.Unlock()
	_, _ = conn.Write(aliveAnswer(r, taken))
	if taken {
		return
	}
	_, _ = io.Copy(io.Discard, in) // until the node has ended
	m.mu.Lock()
	delete(m.own, r.name)
	m.mu.Unlock()
}

// parseAlive returns nil for a request that is too short.
func parseAlive(body []byte) *registration {
	if len(body) < aliveHeader {
		return nil
	}
	r := &registration{port: binary.BigEndian.Uint16(body), kind: body[2], proto: body[3],
		highest: binary.BigEndian.Uint16(body[4:]), last: binary.BigEndian.Uint16(body[6:])}
	length, rest := int(binary.BigEndian.Uint16(body[aliveHeader-2:])), body[aliveHeader:]
	if len(rest) < length+2 {
		return nil
	}
	r.name, rest = string(rest[:length]), rest[length:]
	if length, rest = int(binary.BigEndian.Uint16(rest)), rest[2:]; len(rest) < length {
		return nil
	}
	r.extra = rest[:length]
	return r
}

// aliveAnswer returns the answer to the request of r, a refusal if its name is taken.
func aliveAnswer(r *registration, refused bool) []byte {
	var result byte
	if refused {
		result = 1
	}
	if r.highest >= wideCreation {
		return binary.BigEndian.AppendUint32([]byte{aliveResponse, result}, r.creation)
	}
	return binary.BigEndian.AppendUint16([]byte{oldAliveReply, result}, uint16(r.creation%3+1))
}

// lookUpNode returns the answer to the request for a port.
func (m *mapper) lookUpNode(name string) []byte {
	r := m.registered(name)
	if r == nil {
		r = m.peer(name)
	}
	if r == nil {
		return []byte{portResponse, 1}
	}
	answer := binary.BigEndian.AppendUint16([]byte{portResponse, 0}, r.port)
	answer = append(answer, r.kind, r.proto)
	answer = binary.BigEndian.AppendUint16(answer, r.highest)
	answer = binary.BigEndian.AppendUint16(answer, r.last)
	answer = append(binary.BigEndian.AppendUint16(answer, uint16(len(r.name))), r.name...)
	return append(binary.BigEndian.AppendUint16(answer, uint16(len(r.extra))), r.extra...)
}

// listNodes returns the answer to the request for all names: the mapper's port, and lines.
func (m *mapper) listNodes() []byte {
	all := m.names()
	m.mu.Lock()
	for _, r := range m.own {
		all = append(all, r)
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *registration) int { return cmp.Compare(a.name, b.name) })
	answer := binary.BigEndian.AppendUint32(nil, uint32(m.listenPort()))
	for _, r := range all {
		answer = fmt.Appendf(answer, "name %s at port %d\n", r.name, r.port)
	}
	return answer
}
