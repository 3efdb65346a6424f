package rabbitcluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoLeader reports that a majority of the members of a queue follows no leader.
var ErrNoLeader = errors.New("rabbitcluster: the queue has no leader")

// erlangBinary returns text as an Erlang binary. It may have any characters.
func erlangBinary(text string) string {
	var b strings.Builder
	b.WriteString("<<")
	for i := range len(text) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, text[i])
	}
	b.WriteString(">>")
	return b.String()
}

// queueName returns the Erlang record for the name of a queue of the default virtual host.
func queueName(queue string) string {
	return fmt.Sprintf("rabbit_misc:r(<<\"/\">>,queue,%s)", erlangBinary(queue))
}

// viewExpression returns the view of a node of a quorum queue: the state of the node's member, the node that
// it follows, and the nodes with a member. A member that has lost its leader names it until the next
// election, but does not follow it. RabbitMQ 4.3 has a map in place of the list of nodes.
const viewExpression = `{ok,Q}=rabbit_amqqueue:lookup(%s),{N,_}=amqqueue:get_pid(Q),
S=try ets:lookup_element(ra_state,N,2) catch _:_->none end,
L=case ra_leaderboard:lookup_leader(N) of {_,A}->case lists:member(A,[node()|nodes()]) of true->A;_->none end;_->none end,
lists:flatten(io_lib:format("~s ~s",[S,L])++[[32|atom_to_list(M)]||
M<-case maps:get(nodes,amqqueue:get_type_state(Q)) of X when is_map(X)->maps:keys(X);X->X end])`

// A view is the state of a queue as one node knows it.
type view struct {
	leads   bool  // the node takes itself for the leader
	follows int   // the leader in its view; -1: none
	members []int // in its view
}

// viewFromNode asks node i about a queue.
func (c *Cluster) viewFromNode(i int, queue string) (*view, error) {
	out, err := c.nodes[i].Eval(fmt.Sprintf(viewExpression, queueName(queue)))
	if err != nil {
		return nil, err
	}
	words := strings.Fields(strings.Trim(out, `"`))
	if len(words) < 2 {
		return nil, fmt.Errorf("rabbitcluster: node %d says %q of queue %s", i, out, queue)
	}
	v := &view{leads: words[0] == "leader", follows: c.indexOfNode(words[1])}
	for _, name := range words[2:] {
		v.members = append(v.members, c.indexOfNode(name))
	}
	slices.Sort(v.members)
	return v, nil
}

// indexOfNode returns the index of the node with an Erlang name, or -1.
func (c *Cluster) indexOfNode(name string) int {
	return slices.IndexFunc(c.nodes[:], func(n *Node) bool { return n.Name() == name })
}

// viewsOfNodes returns the views of all nodes that run. A node that does not know the queue has no view.
func (c *Cluster) viewsOfNodes(queue string) (views [Size]*view, err error) {
	err = c.eachNode(func(i int) (err error) {
		if c.nodes[i].Running() {
			views[i], err = c.viewFromNode(i, queue)
		}
		return err
	})
	return views, err
}

// Leader returns the node that leads a quorum queue: it runs, takes itself for the leader, and a majority of
// the members follows it. On the other side of a partition an old leader may take itself for the leader too,
// but no majority follows it after nodes have noticed ([Cluster.AwaitCuts]). The error is [ErrNoLeader] if
// there is no leader, as during an election.
func (c *Cluster) Leader(queue string) (int, error) {
	leader, _, err := c.lookAtQueue(queue)
	return leader, err
}

// Members returns the nodes with a member of a quorum queue, in the view of its leader.
func (c *Cluster) Members(queue string) ([]int, error) {
	_, members, err := c.lookAtQueue(queue)
	return members, err
}

// lookAtQueue returns the leader of a queue and its members.
func (c *Cluster) lookAtQueue(queue string) (leader int, members []int, err error) {
	views, err := c.viewsOfNodes(queue)
	for i, v := range views {
		if v == nil || !v.leads {
			continue
		}
		followers := 0
		for other, o := range views {
			if o != nil && o.follows == i && slices.Contains(v.members, other) {
				followers++
			}
		}
		if 2*followers > len(v.members) {
			return i, v.members, nil
		}
	}
	return -1, nil, errors.Join(fmt.Errorf("%w: %s", ErrNoLeader, queue), err)
}

// MoveLeader makes node i lead a quorum queue and returns when it does. The node must have
// a member of the queue.
func (c *Cluster) MoveLeader(queue string, i int) error {
	return awaitCondition(fmt.Sprintf("node %d leads %s", i, queue), func() error {
		leader, err := c.Leader(queue)
		if err != nil || leader == i {
			return err
		}
		answer, err := c.nodes[leader].Eval(fmt.Sprintf("{ok,Q}=rabbit_amqqueue:lookup(%s),{N,_}=amqqueue:get_pid(Q),ra:transfer_leadership({N,node()},{N,'%s'})",
			queueName(queue), c.nodes[i].Name()))
		return errors.Join(fmt.Errorf("node %d leads, and answers %q", leader, answer), err)
	})
}

// Grow adds a member of a quorum queue on node i, which must run.
func (c *Cluster) Grow(queue string, i int) error {
	return c.resizeQueue(queue, "rabbit_quorum_queue:add_member(<<\"/\">>,%s,'%s',10000)", i)
}

// Shrink removes the member of a quorum queue on node i, which need not run.
func (c *Cluster) Shrink(queue string, i int) error {
	return c.resizeQueue(queue, "rabbit_quorum_queue:delete_member(<<\"/\">>,%s,'%s')", i)
}

// resizeQueue makes the queue's leader evaluate an expression with the queue and the node.
func (c *Cluster) resizeQueue(queue, expression string, i int) error {
	leader, err := c.Leader(queue)
	if err != nil {
		return err
	}
	_, err = c.nodes[leader].Eval("ok=" + fmt.Sprintf(expression, erlangBinary(queue), c.nodes[i].Name()))
	return err
}

// SetPolicy sets a policy for the queues whose names match pattern. The definition is JSON,
// as `{"delivery-limit":3}`.
func (c *Cluster) SetPolicy(name, pattern, definition string) error {
	return c.onAnyNode(func(n *Node) error {
		_, err := n.Eval(fmt.Sprintf("ok=rabbit_policy:parse_set(<<\"/\">>,%s,%s,%s,0,<<\"queues\">>,<<\"guest\">>)",
			erlangBinary(name), erlangBinary(pattern), erlangBinary(definition)))
		return err
	})
}

// onAnyNode calls do for the first node that runs. Any node would do.
func (c *Cluster) onAnyNode(do func(*Node) error) error {
	for _, n := range c.nodes {
		if n.Running() {
			return do(n)
		}
	}
	return errors.New("rabbitcluster: no node runs")
}
