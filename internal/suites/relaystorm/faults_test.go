package relaystorm

import (
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A fault is what strikes in a round.
type fault struct {
	name    string
	weight  int  // how often it is drawn, beside the others
	times   int  // as many messages as in other rounds are written; default: as many
	windows int  // of messages that it may have published twice, at most
	overlap bool // it may take the lead from a relay that does not know yet
	point   bool // a relay dies at a point

	before func(*storm)      // the round's messages are written, while the queues are empty
	inject func(*storm)      // while they are written
	until  func(*storm) bool // what must have happened before heal
	heal   func(*storm)
}

// A point is a failpoint of the relay.
type point struct {
	name     string
	windows  int  // as in a fault
	hits     int  // it strikes at one of the first so many, which every round must see
	refusing bool // the relay comes there over a refusal only
}

// points are where a relay dies in the course of its work, of those that every round
// comes to. Package outbox has a test that strikes at each one there is.
var points = []point{
	{"outbox/before-take-over", 0, 1, false},
	{"outbox/after-take-over", 0, 1, false},
	{"outbox/after-read", 1, 3, false},
	{"outbox/before-publish", 1, 3, false},
	{"outbox/after-confirm", 1, 3, false},
	{"outbox/after-publish", 1, 3, false},
	{"outbox/after-checkpoint", 1, 3, false},
	{"outbox/before-commit", 1, 2, true},
}

// faults returns everything that can strike a relay.
func faults() []fault {
	all := []fault{
		{name: "relay killed", weight: 10, windows: 1, inject: (*storm).killRelay, until: (*storm).settled},
		{name: "relay hangs", weight: 6, windows: 1, overlap: true, inject: (*storm).stopRelay, until: (*storm).settled, heal: (*storm).continueRelay},
		{name: "relay killed when the broker is back", weight: 4, windows: 2, inject: (*storm).cutLink, until: (*storm).written, heal: (*storm).restoreAndKill},
		{name: "relay leaves", weight: 3, inject: (*storm).retireRelay, until: (*storm).settled},

		{name: "queue deleted", weight: 3, before: (*storm).deleteQueue, until: (*storm).refusedAlone, heal: (*storm).declareTopic},
		{name: "binding deleted", weight: 3, inject: (*storm).deleteBinding, until: (*storm).refusedAlone, heal: (*storm).declareTopic},
		{name: "exchange deleted", weight: 3, windows: 1, inject: (*storm).deleteExchange, until: (*storm).refusedAlone, heal: (*storm).declareTopic},
		{name: "topic without a queue", weight: 3, before: (*storm).addTopic, until: (*storm).refusedAlone, heal: (*storm).declareTopic},
		{name: "queues full", weight: 6, times: 2, windows: 1, before: (*storm).limitQueues, until: (*storm).written, heal: (*storm).unlimitQueues},
	}
	all = append(all, brokerFaults()...)
	all = append(all, databaseFaults()...)
	for _, p := range points {
		if failpoint.Enabled {
			all = append(all, p.fault())
		}
	}
	return all
}

// brokerFaults are those in which a confirm may be lost.
func brokerFaults() []fault {
	return []fault{
		{name: "broker restarts", weight: 1, windows: 1, inject: (*storm).stopBroker, until: (*storm).written, heal: (*storm).startBroker},
		{name: "broker killed", weight: 1, windows: 1, inject: (*storm).killBroker, until: (*storm).written, heal: (*storm).startBroker},
		{name: "broker closes all connections", weight: 4, windows: 1, inject: (*storm).closeConnections},
		{name: "broker blocked", weight: 3, windows: 1, inject: (*storm).block, until: (*storm).written, heal: (*storm).unblock},
		{name: "link to the broker cut", weight: 6, windows: 1, inject: (*storm).cutLink, until: (*storm).written, heal: (*storm).restoreLink},
		{name: "confirms held back", weight: 3, windows: 1, inject: (*storm).stallLink, until: (*storm).written, heal: (*storm).resumeLink},
	}
}

// databaseFaults cost the relay what it was about to note. A crash takes what was noted in
// the last moments, since that does not wait for the disk: much of the round, if the relay
// has to begin again.
func databaseFaults() []fault {
	return []fault{
		{name: "database crashes", weight: 4, windows: 3, inject: (*storm).crashDatabase},
		{name: "database sessions ended", weight: 6, inject: (*storm).endSessions},
		{name: "commits of the relays lost", weight: 4, inject: (*storm).loseCommits, until: (*storm).written, heal: (*storm).giveAnswers},
		{name: "commits of the relays unanswered", weight: 4, inject: (*storm).loseAnswers, until: (*storm).written, heal: (*storm).giveAnswers},
	}
}

// fault kills a relay at p.
func (p point) fault() fault {
	return fault{
		name: "relay dies at " + p.name, weight: 3, windows: p.windows, point: true,
		before: func(s *storm) {
			s.retireAll() // or another one might never let it lead
			if p.refusing {
				s.deleteBinding()
			}
		},
		inject: func(s *storm) { s.victim = s.newRelay(fmt.Sprintf("%s=kill:%d", p.name, 1+s.rng.IntN(p.hits))) },
		until:  func(s *storm) bool { return s.victim.Dead() },
		heal: func(s *storm) {
			if p.refusing {
				s.declareTopic()
			}
			s.replenish()
		},
	}
}

// inFlight is how many messages are committed while a relay waits for confirms: it
// has taken some of them by then.
const inFlight = 20

// stall lets the relays wait for confirms, with messages on their way, until what
// it returns is called.
func (s *storm) stall() (resume func()) {
	s.proxy.Stall(true)
	s.committed(inFlight)
	return func() { s.proxy.Stall(false) }
}

// killRelay kills the active relay, half of the time while the broker has
// messages of it that it does not know to be confirmed.
func (s *storm) killRelay() {
	if s.rng.IntN(2) == 0 {
		defer s.stall()()
	}
	s.take(s.active()).Kill()
}

func (s *storm) retireRelay() { s.take(s.active()).retire(s.T) }

// retireAll ends all relays, so that none publishes.
func (s *storm) retireAll() {
	for len(s.relays) > 0 {
		s.take(s.relays[0]).retire(s.T)
	}
}

// stopRelay stops the active relay in the middle of publishing.
func (s *storm) stopRelay() {
	defer s.stall()()
	s.victim = s.active()
	s.victim.Stop()
}

// continueRelay wakes a relay that others have overtaken.
func (s *storm) continueRelay() { s.victim.Continue() }

// deleteQueue finds it empty: what a deleted queue held would be lost by the
// operator's own deed.
func (s *storm) deleteQueue() {
	s.topic = s.anyTopic()
	s.administer("delete queue", func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(s.topology.Queue.GenerateName(s.topic), false, false, false)
		return err
	})
}

// deleteBinding leaves the queue with what it holds.
func (s *storm) deleteBinding() {
	s.topic = s.anyTopic()
	s.administer("delete binding", func(ch *amqp.Channel) error {
		return ch.QueueUnbind(s.topology.Queue.GenerateName(s.topic), "", s.topology.Exchange.GenerateName(s.topic), nil)
	})
}

// deleteExchange makes the broker close the channel on which it is published to.
// The relay declares the exchange again, but not what was bound to it.
func (s *storm) deleteExchange() {
	s.topic = s.anyTopic()
	s.administer("delete exchange", func(ch *amqp.Channel) error {
		return ch.ExchangeDelete(s.topology.Exchange.GenerateName(s.topic), false, false)
	})
}

// addTopic has the writers write, in this round, to a topic that is not declared.
func (s *storm) addTopic() {
	s.topic = fmt.Sprint("late", len(s.licences))
	s.addKeys(s.topic)
	s.consumer.Watch(s.consuming, s.topology.Queue.GenerateName(s.topic))
}

// limitQueues makes the broker nack what comes while the consumer is paused. No relay is
// there at first, so that there is more to be published than queues of one message can
// take.
func (s *storm) limitQueues() {
	s.node.Ctl(s.T, "set_policy", "--apply-to", "queues", "full", `\.`+service+"$", `{"max-length":1}`)
	s.retireAll()
	s.consumer.Pause()
}

// unlimitQueues lets the consumer go on when messages are kept aside.
func (s *storm) unlimitQueues() {
	s.replenish()
	resume := sync.OnceFunc(s.consumer.Resume)
	defer resume()
	s.await("messages are kept aside, and none is refused", drainLimit, func() bool {
		stats := s.outbox()
		return stats.Waiting > 0 && stats.Stored+stats.Refused == 0
	})
	resume()
	s.await("all messages have arrived", drainLimit, s.settled)
	s.node.Ctl(s.T, "clear_policy", "full")
}

func (s *storm) stopBroker() { s.node.Stop(s.T) }

func (s *storm) startBroker() { s.node.Start(s.T) }

// killBroker first has the broker write down which queues it has: of one that was
// declared in the last minutes RabbitMQ 3.10 could not find its log again.
func (s *storm) killBroker() {
	s.node.Ctl(s.T, "eval", "[dets:sync(Table) || Table <- dets:all()].")
	s.node.Kill()
}

func (s *storm) closeConnections() { s.node.CloseConnections(s.T, "storm") }

func (s *storm) block() { s.node.Block(s.T) }

func (s *storm) unblock() { s.node.Unblock(s.T) }

func (s *storm) cutLink() { s.proxy.Refuse(true) }

func (s *storm) restoreLink() { s.proxy.Refuse(false) }

// restoreAndKill kills the active relay while it sends again what it does not know
// the outcome of, some of it sooner than what comes before.
func (s *storm) restoreAndKill() {
	arrived := s.history.Count()
	s.proxy.Refuse(false)
	s.await("a relay publishes again", untilLimit, func() bool { return s.history.Count() > arrived })
	s.take(s.active()).Kill()
}

func (s *storm) stallLink() { s.proxy.Stall(true) }

func (s *storm) resumeLink() { s.proxy.Stall(false) }

func (s *storm) crashDatabase() { s.postgres.crash(s.T) }

func (s *storm) endSessions() { s.postgres.terminateAll(s.T) }

// loseAnswers leaves the relays not knowing what they have noted of refusals and of
// messages that they have published.
func (s *storm) loseAnswers() {
	s.deleteBinding()
	s.database.Lose(pgtest.LoseReply)
}

// loseCommits leaves them having noted nothing.
func (s *storm) loseCommits() {
	s.deleteBinding()
	s.database.Lose(pgtest.LoseCommit)
}

func (s *storm) giveAnswers() {
	s.database.Lose(pgtest.LoseNothing)
	s.declareTopic()
}

// written reports whether the round's messages are committed.
func (s *storm) written() bool { return s.loaded.Load() }

// settled reports whether they have arrived, too.
func (s *storm) settled() bool { return s.written() && len(s.history.Missing("")) == 0 }

// refusedAlone reports whether messages of the topic are refused while all others
// have arrived.
func (s *storm) refusedAlone() bool {
	return s.written() && s.outbox().Refused > 0 && len(s.history.Missing(s.topic)) == 0
}
