package rabbitcluster

import (
	"errors"
	"fmt"
)

// Block raises the memory alarm of node i: all nodes stop reading from connections that publish
// (connection.blocked). It returns when all nodes that are connected to node i know the alarm. A connection
// that has not published since is blocked at its next message.
func (c *Cluster) Block(i int) error {
	return errors.Join(c.nodes[i].process.Block(), c.awaitAlarm(i, "memory", true))
}

// Unblock ends [Cluster.Block].
func (c *Cluster) Unblock(i int) error {
	return errors.Join(c.nodes[i].process.Unblock(), c.awaitAlarm(i, "memory", false))
}

// FillDisk raises the disk alarm of node i, as if its disk were full. To clients it is what
// [Cluster.Block] is.
func (c *Cluster) FillDisk(i int) error {
	return errors.Join(c.nodes[i].process.FillDisk(), c.awaitAlarm(i, "disk", true))
}

// FreeDisk ends [Cluster.FillDisk].
func (c *Cluster) FreeDisk(i int) error {
	return errors.Join(c.nodes[i].process.FreeDisk(), c.awaitAlarm(i, "disk", false))
}

// awaitAlarm returns when all nodes that are connected to node i know its alarm, or its end. A node whose
// broker is stopped has no clients to block.
func (c *Cluster) awaitAlarm(i int, resource string, raised bool) error {
	expression := fmt.Sprintf("whereis(rabbit_alarm)=:=undefined orelse lists:keymember({resource_limit,%s,'%s'},1,rabbit_alarm:get_alarms())=:=%t",
		resource, c.nodes[i].Name(), raised)
	return awaitCondition(fmt.Sprintf("the %s alarm of node %d is %t", resource, i, raised), func() error {
		return c.eachNode(func(other int) error {
			if !c.nodes[other].Running() || !c.network.isJoined(i, other) {
				return nil
			}
			knows, err := c.nodes[other].Eval(expression)
			if err == nil && knows != "true" {
				err = fmt.Errorf("node %d does not know", other)
			}
			return err
		})
	})
}
