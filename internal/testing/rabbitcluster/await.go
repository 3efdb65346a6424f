package rabbitcluster

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// awaitTimeout bounds each wait for a reaction of the cluster.
const awaitTimeout = time.Minute

// awaitPause is the pause between two looks.
const awaitPause = 100 * time.Millisecond

// awaitCondition calls condition until it returns nil.
func awaitCondition(what string, condition func() error) error {
	for deadline := time.Now().Add(awaitTimeout); ; {
		err := condition()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("rabbitcluster: wait %s until %s: %w", awaitTimeout, what, err)
		}
		<-time.After(awaitPause)
	}
}

// viewNodes is an expression for the nodes whose broker runs, in the view of a node. Its name depends on the
// version of RabbitMQ.
const viewNodes = `lists:flatten(lists:join(" ",[atom_to_list(N)||N<-case erlang:function_exported(rabbit_nodes,list_running,0) of
true->rabbit_nodes:list_running();false->rabbit_nodes:all_running() end]))`

// Seen returns the nodes that run, in the view of node i, which is one of them.
func (c *Cluster) Seen(i int) ([]int, error) { return c.askNode(i, viewNodes) }

// HandlesPartitions reports whether node i obeys [Options.Partitions]. RabbitMQ 4.3 ignores this setting.
func (c *Cluster) HandlesPartitions(i int) (bool, error) {
	out, err := c.nodes[i].Eval("erlang:function_exported(rabbit_node_monitor,partitions,0)")
	return out == "true", err
}

// Partitions returns the nodes that are partitioned from node i: node i was cut off from them and does not
// share its tables with them since, though they see each other. It is empty again after a restart of one
// side. RabbitMQ 4.3 has no such state, because a majority decides on its tables: nodes that see each other share them.
func (c *Cluster) Partitions(i int) ([]int, error) {
	return c.askNode(i, `lists:flatten(lists:join(" ",[atom_to_list(N)||N<-try rabbit_node_monitor:partitions() catch error:undef->[] end]))`)
}

// askNode returns the nodes whose names an expression returns, as one string.
func (c *Cluster) askNode(i int, expression string) ([]int, error) {
	out, err := c.nodes[i].Eval(expression)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range strings.Fields(strings.Trim(out, `"[]`)) {
		if other := c.indexOfNode(name); other >= 0 { // other names are programs of an operator
			found = append(found, other)
		}
	}
	slices.Sort(found)
	return found, nil
}

// checkWhole returns nil if the broker of node i runs, sees all nodes and shares its tables with
// all.
func (c *Cluster) checkWhole(i int) error {
	if !c.nodes[i].Running() {
		return fmt.Errorf("node %d is down or frozen", i)
	}
	runs, err := c.nodes[i].Eval("rabbit:is_running()")
	if err != nil {
		return err
	}
	seen, err := c.Seen(i)
	if err != nil {
		return err
	}
	parted, err := c.Partitions(i)
	if err == nil && (runs != "true" || len(seen) != Size || len(parted) > 0) {
		err = fmt.Errorf("node %d: broker runs: %s, sees %v, parted from %v", i, runs, seen, parted)
	}
	return err
}

// allWhole returns nil if each node is whole.
func (c *Cluster) allWhole() error {
	return c.eachNode(c.checkWhole)
}

// eachNode does something for all nodes at once.
func (c *Cluster) eachNode(do func(i int) error) error {
	var (
		work sync.WaitGroup
		errs [Size]error
	)
	for i := range c.nodes {
		work.Go(func() { errs[i] = do(i) })
	}
	work.Wait()
	return errors.Join(errs[:]...)
}

// AwaitAll returns when the broker of each node runs, sees all nodes and shares its tables with all. With
// [Ignore], a partition needs a [Cluster.Heal] for the last.
func (c *Cluster) AwaitAll() error { return awaitCondition("each node sees all", c.allWhole) }

// AwaitBroker returns when the broker of node i runs, or does not run: [PauseMinority] stops the broker and
// leaves the process of the node.
func (c *Cluster) AwaitBroker(i int, runs bool) error {
	return awaitCondition(fmt.Sprintf("the broker of node %d runs: %t", i, runs), func() error {
		got, err := c.nodes[i].Eval("rabbit:is_running()")
		if err == nil && got != strconv.FormatBool(runs) {
			err = fmt.Errorf("it says %s", got)
		}
		return err
	})
}

// AwaitCuts returns when all nodes have noticed the cuts: no node is connected to one that is frozen, down,
// or unreachable in one direction.
func (c *Cluster) AwaitCuts() error {
	return awaitCondition("nodes notice the cuts", func() error {
		return c.eachNode(func(i int) error {
			if !c.nodes[i].Running() {
				return nil
			}
			connected, err := c.connected(i)
			for _, other := range connected {
				if !c.network.isJoined(i, other) || !c.nodes[other].Running() {
					err = errors.Join(err, fmt.Errorf("node %d is still connected to node %d", i, other))
				}
			}
			return err
		})
	})
}

// connected returns the nodes to which node i has a connection that it takes for alive.
func (c *Cluster) connected(i int) ([]int, error) {
	return c.askNode(i, `lists:flatten(lists:join(" ",[atom_to_list(N)||N<-nodes()]))`)
}

// AwaitView returns when node i sees exactly those nodes as running. Node i is one of them.
func (c *Cluster) AwaitView(i int, nodes ...int) error {
	want := slices.Sorted(slices.Values(nodes))
	return awaitCondition(fmt.Sprintf("node %d sees %v", i, want), func() error {
		seen, err := c.Seen(i)
		if err == nil && !slices.Equal(seen, want) {
			err = fmt.Errorf("it sees %v", seen)
		}
		return err
	})
}

// AwaitLeader returns the leader of a quorum queue as soon as it has one. For a moment nodes may still send
// new channels to the previous leader. Such a channel refuses messages (basic.nack) until that leader is
// back: publish on another channel then.
func (c *Cluster) AwaitLeader(queue string) (leader int, err error) {
	err = awaitCondition(queue+" has a leader", func() (err error) {
		leader, err = c.Leader(queue)
		return err
	})
	return leader, err
}
