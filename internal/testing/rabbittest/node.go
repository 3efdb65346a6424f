package rabbittest

import (
	"errors"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/rabbitnode"
)

// A Node is a private RabbitMQ, which the test may kill.
type Node struct{ node *rabbitnode.Node }

// StartNode starts a node and waits until it accepts connections. It skips the test on a machine without the
// server's binaries: a broker elsewhere is enough for most tests.
func StartNode(t testing.TB) *Node {
	t.Helper()
	return StartNodeWith(t, nil)
}

// StartNodeWith is [StartNode] for a node with other settings.
func StartNodeWith(t testing.TB, opts *rabbitnode.Options) *Node {
	t.Helper()
	node, err := rabbitnode.New(opts)
	switch {
	case errors.Is(err, rabbitnode.ErrAbsent):
		needtest.Missing(t, "rabbitmq", "%v", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &Node{node}
	n.Start(t)
	return n
}

// URL returns the node's URL, which stays the same after a restart.
func (n *Node) URL() string { return n.node.URL() }

// TLSURL returns the node's TLS URL.
func (n *Node) TLSURL() string { return n.node.TLSURL() }

// Start starts the node, with the data it had, and waits until it accepts
// connections.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	if err := n.node.Start(); err != nil {
		t.Fatal(err)
	}
}

// Kill kills the node, as kill -9 does, and returns when it is gone.
func (n *Node) Kill() { n.node.Kill() }

// Stop stops the node in good order. Stop and start a node before a test kills it. Otherwise a queue that was
// declared shortly before can come back without a leader, for ever: RabbitMQ 3.10 does not sync its entry in
// a registry.
func (n *Node) Stop(t testing.TB) {
	t.Helper()
	if err := n.node.Stop(); err != nil {
		t.Fatal(err)
	}
}

// Restart stops the node in good order and starts it again. Unlike Stop and Start, a goroutine other than the
// test's may call it; one at a time.
func (n *Node) Restart() error {
	if err := n.node.Stop(); err != nil {
		return err
	}
	return n.node.Start()
}

// Block raises the node's memory alarm: the broker stops reading from connections that publish, and tells
// them so (connection.blocked). A connection that has not published yet is blocked at its first message.
func (n *Node) Block(t testing.TB) {
	t.Helper()
	if err := n.node.Block(); err != nil {
		t.Fatal(err)
	}
}

// Unblock ends the alarm of [Node.Block].
func (n *Node) Unblock(t testing.TB) {
	t.Helper()
	if err := n.node.Unblock(); err != nil {
		t.Fatal(err)
	}
}

// CloseConnections makes the broker close all connections, with reason. A client sees CONNECTION_FORCED, 320.
// The broker accepts new ones.
func (n *Node) CloseConnections(t testing.TB, reason string) {
	t.Helper()
	if _, err := n.node.CloseConnections(reason); err != nil {
		t.Fatal(err)
	}
}

// Ctl runs a command of rabbitmqctl on the node and returns its output.
func (n *Node) Ctl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.node.Ctl(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
