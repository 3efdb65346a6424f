package rabbitcluster

import (
	"errors"
	"fmt"
)

// Kill kills node i, as kill -9 does, and returns when it has ended. A queue that was declared shortly before
// can come back without a member on this node, for ever: call Sync first (see [rabbitnode.Node.Kill]).
func (c *Cluster) Kill(i int) {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state.Store(stateDown)
	n.process.Kill()
}

// KillAll kills all nodes at once. Start them with [Cluster.StartAll].
func (c *Cluster) KillAll() {
	_ = c.eachNode(func(i int) error {
		c.Kill(i)
		return nil
	})
}

// Start starts node i with its old data and returns when it accepts connections. A node waits for nodes that
// stopped after it: if all were down, use [Cluster.StartAll]. After an error the node is down.
func (c *Cluster) Start(i int) error {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.Load() != stateDown {
		return fmt.Errorf("rabbitcluster: start node %d: it runs", i)
	}
	if err := n.process.Start(); err != nil {
		n.process.Kill()
		return fmt.Errorf("rabbitcluster: start node %d: %w", i, err)
	}
	n.state.Store(stateRunning)
	return nil
}

// StartAll starts all nodes that are down, at once, and returns when each node sees all
// others.
func (c *Cluster) StartAll() error {
	err := c.eachNode(func(i int) error {
		if c.nodes[i].state.Load() != stateDown {
			return nil
		}
		return c.Start(i)
	})
	if err != nil {
		return err
	}
	return c.AwaitAll()
}

// Stop stops node i in good order. A frozen node must be thawed first.
func (c *Cluster) Stop(i int) error {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.Load() == stateFrozen {
		return fmt.Errorf("rabbitcluster: stop node %d: it is frozen", i)
	}
	n.state.Store(stateDown)
	if err := n.process.Stop(); err != nil {
		return fmt.Errorf("rabbitcluster: stop node %d: %w", i, err)
	}
	return nil
}

// Restart stops node i in good order and starts it again. It returns once the node accepts
// connections.
func (c *Cluster) Restart(i int) error {
	if err := c.Stop(i); err != nil {
		return err
	}
	return c.Start(i)
}

// RollingRestart restarts all nodes, one after the other. Each is seen by all others
// before the next one stops.
func (c *Cluster) RollingRestart() error {
	for i := range c.nodes {
		if err := c.Restart(i); err != nil {
			return err
		}
		if err := c.AwaitAll(); err != nil {
			return err
		}
	}
	return nil
}

// StopApp stops the broker of node i and leaves its Erlang running: clients are
// disconnected, and other nodes count it as down.
func (c *Cluster) StopApp(i int) error {
	_, err := c.nodes[i].Eval("ok=rabbit:stop()")
	return err
}

// StartApp ends [Cluster.StopApp] and returns once the node accepts connections.
func (c *Cluster) StartApp(i int) error {
	_, err := c.nodes[i].Eval("ok=rabbit:start()")
	return err
}

// Freeze stops the processes of node i, as SIGSTOP does: its connections stay open and do
// not answer.
func (c *Cluster) Freeze(i int) error { return c.freezeOrThaw(i, stateRunning, stateFrozen) }

// Thaw ends [Cluster.Freeze]. If other nodes have given the node up meanwhile, that is a partition for it.
func (c *Cluster) Thaw(i int) error { return c.freezeOrThaw(i, stateFrozen, stateRunning) }

// freezeOrThaw freezes or thaws node i.
func (c *Cluster) freezeOrThaw(i int, before, after int32) error {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state.Load() != before {
		return fmt.Errorf("rabbitcluster: freeze or thaw node %d: it is down, or was frozen or thawed before", i)
	}
	signal := n.process.Freeze
	if after == stateRunning {
		signal = n.process.Thaw
	}
	if err := signal(); err != nil {
		return fmt.Errorf("rabbitcluster: freeze or thaw node %d: %w", i, err)
	}
	n.state.Store(after)
	return nil
}

// Partition cuts node i off from all others, in both directions. Clients still reach it.
// It returns at once; [Cluster.AwaitCuts] waits until nodes have noticed.
func (c *Cluster) Partition(i int) {
	c.network.changeCuts(func(cut *[Size][Size]bool) {
		for other := range Size {
			cut[i][other], cut[other][i] = other != i, other != i
		}
	})
}

// CutOneWay loses what node from sends to node to. The other direction passes. It returns
// at once. Nodes notice as they notice a cut of both directions.
func (c *Cluster) CutOneWay(from, to int) {
	c.network.changeCuts(func(cut *[Size][Size]bool) { cut[from][to] = from != to })
}

// Mend ends all cuts. Connections that have survived deliver the data that was sent meanwhile. Nodes that
// have given each other up connect again within seconds. With [Ignore] they stay apart until one side
// restarts: see [Cluster.Partitions], [Cluster.Heal].
func (c *Cluster) Mend() {
	c.network.changeCuts(func(cut *[Size][Size]bool) { *cut = [Size][Size]bool{} })
}

// Heal mends the network and returns when all nodes are one cluster again. If the broker leaves that to an
// operator, as with [Ignore], Heal restarts the brokers of the smaller side, which disconnects their clients.
// All nodes must run.
func (c *Cluster) Heal() error {
	c.Mend()
	return awaitCondition("the cluster is one again", func() error {
		err := c.allWhole()
		if err == nil || c.autoheal {
			return err
		}
		i, partErr := c.mostParted()
		if partErr != nil || i < 0 {
			return errors.Join(err, partErr)
		}
		return errors.Join(err, c.StopApp(i), c.StartApp(i))
	})
}

// mostParted returns the node that is partitioned from most others though it is connected to all, or -1.
func (c *Cluster) mostParted() (int, error) {
	most, count := -1, 0
	for i := range c.nodes {
		connected, err := c.connected(i)
		if err != nil || len(connected) < Size-1 {
			return -1, err
		}
		parted, err := c.Partitions(i)
		if err != nil {
			return -1, err
		}
		if len(parted) > count {
			most, count = i, len(parted)
		}
	}
	return most, nil
}
