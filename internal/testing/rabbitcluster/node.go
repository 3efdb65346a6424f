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

// A Node is one of a [Cluster], which starts and ends it. Methods that ask a node that does
// not run return an error. One that is frozen answers after it is thawed, or they give up
// after a minute.
type Node struct {
	name    string // without the host
	index   int
	cluster *Cluster
	mapper  *mapper
	process *rabbitnode.Node
	state   atomic.Int32

	mu sync.Mutex // one change of the process at a time
}

// Name is the node's Erlang name.
func (n *Node) Name() string { return n.process.Name() }

// URL is where the node listens, also after a restart.
func (n *Node) URL() string { return n.process.URL() }

// TLSURL is where a node with a certificate listens for TLS.
func (n *Node) TLSURL() string { return n.process.TLSURL() }

// Addr is the host and port of URL.
func (n *Node) Addr() string { return n.process.Addr() }

// Log is the file with the node's log.
func (n *Node) Log() string { return n.process.Log() }

// Output is the file with what the node has printed.
func (n *Node) Output() string { return n.process.Output() }

// Eval evaluates Erlang expressions, without the full stop, in the node and returns the
// value of the last one, as [rabbitnode.Node.Eval] does. It passes no link.
func (n *Node) Eval(expressions string) (string, error) { return n.process.Eval(expressions) }

// Ctl runs a command of rabbitmqctl on the node and returns what it printed. What the
// command itself asks other nodes passes the node's links.
func (n *Node) Ctl(args ...string) (string, error) { return n.process.Ctl(args...) }

// Sync writes what the node keeps in memory for minutes, as [rabbitnode.Node.Sync] does.
func (n *Node) Sync() error { return n.process.Sync() }

// CloseConnections has the node close all connections of clients, and says how many those
// were: to a client it is CONNECTION_FORCED, 320, with reason.
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

// lookUpPeer is what n's port mapper says of another node of the cluster.
func (n *Node) lookUpPeer(name string) *registration {
	for _, r := range n.peerRegistrations() {
		if r.name == name {
			return r
		}
	}
	return nil
}

// peerRegistrations are the other nodes that run, or that the network hides, with the ports of the
// links to them. A node that may not join yet has none.
func (n *Node) peerRegistrations() []*registration {
	if n.index > int(n.cluster.admitted.Load()) {
		return nil
	}
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
		if r == nil { // a mapper behind the cut would not answer, nor will the link
			r = &registration{name: other.name, kind: normalNode, highest: wideCreation, last: wideCreation - 1}
		}
		copied := *r
		copied.port = l.listenPort()
		found = append(found, &copied)
	}
	return found
}
