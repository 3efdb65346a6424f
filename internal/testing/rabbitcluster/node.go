package rabbitcluster

import (
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
)

// The states of a node.
const (
	stateDown int32 = iota
	stateRunning
	stateFrozen
)

// A Node is a node of a [Cluster], which starts and ends it. Methods that ask a node return an error if it
// does not run. If it is frozen, they wait until it is thawed, or return an error after a minute.
type Node struct {
	name    string // without the host
	index   int
	cluster *Cluster
	mapper  *mapper
	process *rabbitnode.Node
	state   atomic.Int32

	mu sync.Mutex // one change of the process at a time
}

// Name returns the node's Erlang name.
func (n *Node) Name() string { return n.process.Name() }

// URL returns the node's URL, which stays the same after a restart.
func (n *Node) URL() string { return n.process.URL() }

// TLSURL returns the TLS URL of a node with a certificate.
func (n *Node) TLSURL() string { return n.process.TLSURL() }

// Addr returns the host and port of URL.
func (n *Node) Addr() string { return n.process.Addr() }

// Log returns the file with the node's log.
func (n *Node) Log() string { return n.process.Log() }

// Output returns the file with the node's output.
func (n *Node) Output() string { return n.process.Output() }

// Eval evaluates Erlang expressions, without the full stop, in the node and returns the value of the last
// one, as [rabbitnode.Node.Eval] does. It uses no link.
func (n *Node) Eval(expressions string) (string, error) { return n.process.Eval(expressions) }

// Ctl runs a command of rabbitmqctl on the node and returns its output. Requests of the command to other
// nodes pass the node's links.
func (n *Node) Ctl(args ...string) (string, error) { return n.process.Ctl(args...) }

// Sync writes data that the node keeps in memory for minutes, as [rabbitnode.Node.Sync] does.
func (n *Node) Sync() error { return n.process.Sync() }

// CloseConnections makes the node close all connections of clients, and returns their number. A client sees
// CONNECTION_FORCED, 320, with reason.
func (n *Node) CloseConnections(reason string) (int, error) {
	return n.process.CloseConnections(reason)
}

// Running reports whether the node's process was started, not killed since, and not frozen.
func (n *Node) Running() bool { return n.state.Load() == stateRunning }

// closeNode kills the node and removes its files.
func (n *Node) closeNode() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state.Store(stateDown)
	return n.process.Close()
}

// distribution is where the node listens for other nodes; empty: it does not run.
func (n *Node) distribution() string {
	r := n.mapper.registered(n.name)
	if r == nil {
		return ""
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(r.port)))
}

// lookUpPeer returns the registration of another node of the cluster, for n's port mapper.
func (n *Node) lookUpPeer(name string) *registration {
	for _, r := range n.peerRegistrations() {
		if r.name == name {
			return r
		}
	}
	return nil
}

// peerRegistrations returns the other nodes that run, or that the network hides, with the ports of the links
// to them.
func (n *Node) peerRegistrations() []*registration {
	var found []*registration
	for i, other := range n.cluster.nodes {
		l := n.cluster.links[n.index][i]
		if l == nil {
			continue
		}
		r := other.mapper.registered(other.name)
		if r == nil && n.cluster.network.isJoined(n.index, i) {
			continue
		}
		if r == nil { // behind the cut: the link will not answer either
			r = &registration{name: other.name, kind: normalNode, highest: wideCreation, last: wideCreation - 1}
		}
		copied := *r
		copied.port = l.listenPort()
		found = append(found, &copied)
	}
	return found
}
