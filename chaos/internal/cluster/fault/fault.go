// Package fault holds the faults of a chaos run on a cluster of RabbitMQ. They strike one after the other,
// while a shop uses the cluster.
package fault

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// How long faults last.
const (
	downTime   = 3 * time.Second  // of a node that was killed or stopped, before it starts again
	frozenTime = 20 * time.Second // longer than nodes and clients wait for one that is silent
	cutTime    = 20 * time.Second // of a partition; the same
	alarmTime  = 5 * time.Second
)

// The names of the faults.
const (
	KillLeader     = "kill-leader"
	KillIdle       = "kill-idle-node"
	StopLeader     = "stop-app-of-leader"
	FreezeLeader   = "freeze-leader"
	RollingRestart = "rolling-restart"
	Partition      = "partition"
	OneWay         = "one-way-partition"
	MemoryAlarm    = "memory-alarm"
	DiskAlarm      = "disk-alarm"
	KillAll        = "kill-all-nodes"
	KillHost       = "kill-host"
	RedNoMajority  = "red-no-majority"
	RedResized     = "red-resized"
)

// A Fault is something that happens to a cluster. The steps that it does not need are nil.
type Fault struct {
	Name    string
	About   string
	Prepare func(*Scene) error // chooses a node; may disturb the services
	Strike  func(*Scene) error // returns when the fault is in force, or over
	Hold    time.Duration      // from the end of Strike to End
	End     func(*Scene) error // ends the fault, an operator's part included
}

// StopsRedQueues reports whether the fault concerns topic red alone: blue must not notice it.
func (f *Fault) StopsRedQueues() bool { return f.Name == RedNoMajority || f.Name == RedResized }

// HitsIdleNode reports whether the fault strikes a node that leads no queue.
func (f *Fault) HitsIdleNode() bool { return f.Name == KillIdle }

// AllFaults returns every fault. noMajority is how long topic red has no majority.
func AllFaults(noMajority time.Duration) []Fault {
	return slices.Concat(nodeFaults(), networkFaults(), alarmFaults(), redFaults(noMajority))
}

// FindFault returns the fault called name; nil: there is none.
func FindFault(all []Fault, name string) *Fault {
	if i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

func nodeFaults() []Fault {
	return []Fault{
		{KillLeader, "kill -9 of the node that leads most queues", (*Scene).chooseLeader, killVictim, downTime, startVictim},
		{KillIdle, "kill -9 of a node that leads no queue", (*Scene).chooseIdle, killVictim, downTime, startVictim},
		{KillHost, "kill -9 of the node that hosts all classic queues", (*Scene).chooseLeader, killVictim, downTime, startVictim},
		{StopLeader, "stop_app of the node that leads most queues", (*Scene).chooseLeader,
			func(s *Scene) error { return s.Cluster.StopApp(s.victim) }, downTime,
			func(s *Scene) error { return s.Cluster.StartApp(s.victim) }},
		{FreezeLeader, "SIGSTOP of the node that leads most queues", (*Scene).chooseLeader,
			func(s *Scene) error { return s.Cluster.Freeze(s.victim) }, frozenTime, thawVictim},
		{RollingRestart, "all nodes restarted in good order, one after the other", nil,
			func(s *Scene) error { return s.Cluster.RollingRestart() }, 0, nil},
		{KillAll, "kill -9 of all nodes at once", nil, killAllNodes, downTime,
			func(s *Scene) error { return s.Cluster.StartAll() }},
	}
}

func killVictim(s *Scene) error {
	if err := s.syncNodes(); err != nil {
		return err
	}
	s.Cluster.Kill(s.victim)
	return nil
}

func startVictim(s *Scene) error { return s.Cluster.Start(s.victim) }

func killAllNodes(s *Scene) error {
	if err := s.syncNodes(); err != nil {
		return err
	}
	s.Cluster.KillAll()
	return nil
}

func thawVictim(s *Scene) error {
	if err := s.Cluster.Thaw(s.victim); err != nil {
		return err
	}
	return s.Cluster.Heal()
}

func networkFaults() []Fault {
	return []Fault{
		{Partition, "the node with most clients is cut off from the others", (*Scene).chooseHost,
			func(s *Scene) error { s.Cluster.Partition(s.victim); return nil }, cutTime, mendNetwork},
		{OneWay, "what the node with most clients sends to one other node is lost", (*Scene).chooseHost,
			func(s *Scene) error { s.Cluster.CutOneWay(s.victim, s.otherNodes(s.victim)[0]); return nil }, cutTime, mendNetwork},
	}
}

// mendNetwork ends a partition. If the broker ignores partitions, this includes the restart that an operator
// would do.
func mendNetwork(s *Scene) error {
	if s.Heals {
		s.Cluster.Mend()
		return nil
	}
	return s.Cluster.Heal()
}

func alarmFaults() []Fault {
	return []Fault{
		{MemoryAlarm, "one node is short of memory, so no node takes messages", (*Scene).chooseHost,
			func(s *Scene) error { return s.Cluster.Block(s.victim) }, alarmTime,
			func(s *Scene) error { return s.Cluster.Unblock(s.victim) }},
		{DiskAlarm, "one node is short of disk, so no node takes messages", (*Scene).chooseHost,
			func(s *Scene) error { return s.Cluster.FillDisk(s.victim) }, alarmTime,
			func(s *Scene) error { return s.Cluster.FreeDisk(s.victim) }},
	}
}

func redFaults(noMajority time.Duration) []Fault {
	return []Fault{
		{RedNoMajority, "one of the two members of red's queue is killed; other queues have three", prepareMinority, killVictim, noMajority, restoreRed},
		{RedResized, "red's queue loses and regains its member on each node, again and again", nil, resizeRed, 0, nil},
	}
}

// prepareMinority reduces red's queue to two members, one of them on the victim, which leads no queue and has
// no clients. So the victim's death affects red alone.
func prepareMinority(s *Scene) error {
	if err := s.chooseIdle(); err != nil {
		return err
	}
	if err := s.sendClientsAway(); err != nil {
		return err
	}
	leader, err := s.leaderOf(s.Red)
	if err != nil {
		return err
	}
	for _, i := range s.otherNodes(s.victim) {
		if i != leader {
			return s.changeMember(s.Cluster.Shrink, i, false)
		}
	}
	return nil
}

func restoreRed(s *Scene) error {
	if err := s.Cluster.Start(s.victim); err != nil {
		return err
	}
	for i := range s.Cluster.Nodes() {
		if err := s.changeMember(s.Cluster.Grow, i, true); err != nil {
			return err
		}
	}
	return nil
}

// resizeTime is how long red's queue is resized: a change takes between some milliseconds and a second.
const resizeTime = 8 * time.Second

// resizeRed removes and adds the member on each node in turn, the leader's last, until resizeTime is over.
func resizeRed(s *Scene) error {
	for end := time.Now().Add(resizeTime); time.Now().Before(end); {
		leader, err := s.leaderOf(s.Red)
		if err != nil {
			return err
		}
		for _, i := range append(s.otherNodes(leader), leader) {
			if err := errors.Join(s.changeMember(s.Cluster.Shrink, i, false), s.changeMember(s.Cluster.Grow, i, true)); err != nil {
				return err
			}
		}
	}
	return nil
}

// The limits of a change of a queue's members. A new leader refuses a change until it has committed an entry of
// its term (cluster_change_not_permitted), so the change is retried.
const (
	resizePatience = 30 * time.Second
	resizePause    = 200 * time.Millisecond
)

// changeMember adds or removes the member of red's queue on node i. It does nothing if the queue is already so.
func (s *Scene) changeMember(change func(queue string, i int) error, i int, member bool) error {
	for end := time.Now().Add(resizePatience); ; {
		members, err := s.Cluster.Members(s.Red)
		if err == nil && slices.Contains(members, i) == member {
			return nil
		}
		if err == nil {
			err = change(s.Red, i)
		}
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("fault: change the members of red's queue: %w", err)
		}
		<-time.After(resizePause)
	}
}
