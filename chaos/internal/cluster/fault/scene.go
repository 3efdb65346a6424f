package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/testing/rabbitcluster"
)

// A Scene is the target of faults.
type Scene struct {
	Cluster *rabbitcluster.Cluster
	Queues  []string // of all topics, Red among them
	Red     string   // the queue of topic red
	Classic bool     // the queues are classic ones, which no node leads
	Heals   bool     // the cluster ends partitions without an operator

	victim int // the node that the fault has chosen
	notes  []string
}

// JoinedNotes returns the faults' notes since the last call.
func (s *Scene) JoinedNotes() string {
	defer func() { s.notes = nil }()
	return strings.Join(s.notes, ", ")
}

func (s *Scene) addNote(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// otherNodes returns the indexes of all nodes except i.
func (s *Scene) otherNodes(i int) (others []int) {
	for other := range rabbitcluster.Size {
		if other != i {
			others = append(others, other)
		}
	}
	return others
}

// countLoad counts, for each node, the queues that it leads or hosts, and the connections of
// clients.
func (s *Scene) countLoad() (leads, clients [rabbitcluster.Size]int, err error) {
	for _, queue := range s.Queues {
		i, err := s.leaderOf(queue)
		if err != nil {
			return leads, clients, err
		}
		leads[i]++
	}
	for i := range rabbitcluster.Size {
		if clients[i], err = s.countClients(i); err != nil {
			return leads, clients, err
		}
	}
	return leads, clients, nil
}

// connectionsExpression counts the connections to a node. RabbitMQ 4.3 has no connections_local any more.
const connectionsExpression = `length(case erlang:function_exported(rabbit_networking, local_connections, 0) of
	true -> rabbit_networking:local_connections(); false -> rabbit_networking:connections_local() end)`

// countClients counts the connections of clients to a node.
func (s *Scene) countClients(i int) (int, error) {
	out, err := s.Cluster.Node(i).Eval(connectionsExpression)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// leaderOf returns the node that leads a quorum queue, or hosts a classic one.
func (s *Scene) leaderOf(queue string) (int, error) {
	if !s.Classic {
		return s.Cluster.AwaitLeader(queue)
	}
	out, err := s.Cluster.Node(0).Eval(fmt.Sprintf(
		"{ok,Q}=rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>,queue,<<%q>>)),atom_to_list(node(amqqueue:get_pid(Q)))", queue))
	if err != nil {
		return 0, err
	}
	for i, n := range s.Cluster.Nodes() {
		if n.Name() == strings.Trim(out, `"`) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("fault: %s hosts queue %s, but is no node of the cluster", out, queue)
}

// indexOfMost returns the index of the greatest number; of equal ones that with the greatest tiebreak.
func indexOfMost(of, tiebreak [rabbitcluster.Size]int) (best int) {
	for i := range of {
		if of[i] > of[best] || of[i] == of[best] && tiebreak[i] > tiebreak[best] {
			best = i
		}
	}
	return best
}

// The limits of preparations.
const (
	moveAttempts  = 10 // closures of the connections to a node, until its clients have gone elsewhere
	reconnectTime = time.Second
)

// chooseLeader makes the node that leads most queues the victim.
func (s *Scene) chooseLeader() error {
	leads, clients, err := s.countLoad()
	if err != nil {
		return err
	}
	s.victim = indexOfMost(leads, clients)
	s.noteVictim(leads, clients)
	return nil
}

// chooseHost makes the node to which most clients are connected the victim.
func (s *Scene) chooseHost() error {
	leads, clients, err := s.countLoad()
	if err != nil {
		return err
	}
	s.victim = indexOfMost(clients, leads)
	s.noteVictim(leads, clients)
	return nil
}

// chooseIdle makes the node with the fewest queues the victim, and moves their leaders to other nodes.
func (s *Scene) chooseIdle() error {
	leads, clients, err := s.countLoad()
	if err != nil {
		return err
	}
	for i := range leads {
		leads[i] = -leads[i]
	}
	s.victim = indexOfMost(leads, clients)
	if s.Classic && leads[s.victim] < 0 {
		return errors.New("fault: each node hosts a classic queue, which cannot be moved")
	}
	for _, queue := range s.Queues {
		if err := s.moveAway(queue); err != nil {
			return err
		}
	}
	if leads, clients, err = s.countLoad(); err == nil {
		s.noteVictim(leads, clients)
	}
	return err
}

// moveAway makes a node other than the victim lead a queue.
func (s *Scene) moveAway(queue string) error {
	leader, err := s.leaderOf(queue)
	if err != nil || leader != s.victim || s.Classic {
		return err
	}
	return s.Cluster.MoveLeader(queue, s.otherNodes(s.victim)[0])
}

func (s *Scene) noteVictim(leads, clients [rabbitcluster.Size]int) {
	verb := "leads"
	if s.Classic {
		verb = "hosts"
	}
	s.addNote("node %d %s %d of %d queues, has %d client connections", s.victim, verb, leads[s.victim], len(s.Queues), clients[s.victim])
}

// sendClientsAway closes the connections to the victim until its clients use other nodes.
func (s *Scene) sendClientsAway() error {
	for range moveAttempts {
		n, err := s.countClients(s.victim)
		if err != nil || n == 0 {
			return err
		}
		if _, err := s.Cluster.Node(s.victim).CloseConnections("clients move"); err != nil {
			return err
		}
		<-time.After(reconnectTime)
	}
	s.addNote("its clients stay")
	return nil
}

// syncNodes flushes the disk of each running node, so that new queues survive a kill.
func (s *Scene) syncNodes() error {
	var errs []error
	for _, n := range s.Cluster.Nodes() {
		if n.Running() {
			errs = append(errs, n.Sync())
		}
	}
	return errors.Join(errs...)
}

// The limits of [Scene.AwaitSettled]. The broker's autoheal may hang, and looks again after a
// minute.
const (
	settleLooks  = 4               // each of them as long as the cluster waits
	settleNoteAt = 5 * time.Second // a longer wait is worth a note
)

// AwaitSettled returns once the cluster is whole and each queue has a leader.
func (s *Scene) AwaitSettled() error {
	began := time.Now()
	err := s.Cluster.AwaitAll()
	for range settleLooks - 1 {
		if err == nil {
			break
		}
		err = s.Cluster.AwaitAll()
	}
	if err != nil {
		return err
	}
	if took := time.Since(began); took > settleNoteAt {
		s.addNote("cluster whole only %.0f s later", took.Seconds())
	}
	for _, queue := range s.Queues {
		if _, err := s.leaderOf(queue); err != nil {
			return err
		}
	}
	return nil
}
