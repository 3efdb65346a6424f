package fault

import (
	"math/rand/v2"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
)

// The names of the faults.
const (
	Kill           = "sigkill"
	Suspend        = "sigstop"
	RollingRestart = "rolling-restart"

	Terminate       = "pg-terminate"
	Crash           = "pg-crash"
	CommitLost      = "commit-lost"
	CommitReplyLost = "commit-reply-lost"

	LinkSlow    = "link-slow"
	LinkNarrow  = "link-narrow"
	LinkSwallow = "link-swallow"
	LinkReset   = "link-reset"
	LinkCut     = "link-cut"

	BrokerClose   = "broker-close"
	BrokerRestart = "broker-restart"
	BrokerKill    = "broker-kill"
	BrokerAlarm   = "broker-alarm"

	QueueDelete    = "queue-delete"
	BindingDelete  = "binding-delete"
	ExchangeDelete = "exchange-delete"

	LockInbox = "lock-inbox"
	LockLease = "lock-lease"
	LockRows  = "lock-rows"
	Deadlock  = "deadlock"

	GatewayError = "gateway-error"
	GatewayLost  = "gateway-lost"
	GatewaySlow  = "gateway-slow"
)

// A kind is a fault with its frequency, targets and function.
type kind struct {
	name    string
	rate    float64                                 // times in a hundred seconds
	least   int                                     // times in any storm, at least
	exact   func(record.Options) int                // replaces rate and least; nil: they apply
	longest time.Duration                           // a fault lasts between a third of it and all of it; 0: a moment
	takes   time.Duration                           // how long it occupies its lane; 0: as long as it lasts
	target  func(*rand.Rand) string                 // nil: none
	args    func(*rand.Rand) string                 // nil: none
	carry   func(*carrier, *record.Planned) outcome // called on time in a separate goroutine
	broker  bool                                    // whether it is in the broker's lane
}

// kinds are all faults except kills, which have a separate random stream.
var kinds = []kind{
	{name: Suspend, rate: 5, least: 1, longest: 8 * time.Second, target: anyProcess, carry: (*carrier).suspendProcess, takes: 2 * time.Second},
	{name: RollingRestart, rate: 2, least: 1, target: anyService, carry: (*carrier).rollingRestart, takes: 3 * time.Second},

	{name: Terminate, rate: 10, least: 1, target: serviceOrAll, carry: (*carrier).terminate},
	{name: Crash, exact: func(o record.Options) int { return o.Crashes }, carry: (*carrier).crashPostgres, takes: 3 * time.Second},
	{name: CommitLost, rate: 8, least: 1, longest: 2 * time.Second, target: committer, carry: (*carrier).loseCommits, takes: time.Second},
	{name: CommitReplyLost, rate: 8, least: 1, longest: 2 * time.Second, target: committer, carry: (*carrier).loseCommits, takes: time.Second},

	{name: LinkSlow, rate: 3, least: 1, longest: 4 * time.Second, target: pickLink, args: randomLatency, carry: (*carrier).strikeLink, takes: time.Second},
	{name: LinkNarrow, rate: 3, least: 1, longest: 4 * time.Second, target: pickLink, args: bandwidth, carry: (*carrier).strikeLink, takes: time.Second},
	{name: LinkSwallow, rate: 3, least: 1, longest: 4 * time.Second, target: pickLink, carry: (*carrier).strikeLink, takes: time.Second},
	{name: LinkReset, rate: 3, least: 1, longest: 2 * time.Second, target: pickLink, carry: (*carrier).strikeLink, takes: time.Second},
	{name: LinkCut, rate: 3, least: 1, longest: 3 * time.Second, target: pickLink, carry: (*carrier).strikeLink, takes: time.Second},

	{name: BrokerClose, rate: 5, least: 1, carry: (*carrier).closeConnections, broker: true},
	{name: BrokerRestart, rate: 0.7, least: 1, carry: (*carrier).restartBroker, takes: brokerBoot, broker: true},
	{name: BrokerKill, exact: func(o record.Options) int { return o.BrokerKills }, carry: (*carrier).restartBroker, takes: brokerBoot, broker: true},
	{name: BrokerAlarm, exact: func(o record.Options) int { return o.Alarms }, longest: 3 * time.Second, carry: (*carrier).raiseAlarm, broker: true},
	{name: QueueDelete, rate: 2, least: 1, target: deletableTopic, carry: (*carrier).deleteQueues, takes: 3 * time.Second, broker: true},
	{name: BindingDelete, rate: 8, least: 1, longest: time.Second, target: unboundTopic, carry: (*carrier).deleteBindings, takes: 2 * time.Second, broker: true},
	{name: ExchangeDelete, rate: 5, least: 1, longest: time.Second, target: unboundTopic, carry: (*carrier).deleteExchange, takes: 2 * time.Second, broker: true},

	{name: LockInbox, rate: 2, least: 1, longest: 1500 * time.Millisecond, target: inboxService, carry: (*carrier).lockTable},
	{name: LockLease, rate: 3, least: 1, longest: 4 * time.Second, target: inboxService, carry: (*carrier).lockTable},
	{name: LockRows, rate: 3, least: 1, longest: 1500 * time.Millisecond, target: inboxService, carry: (*carrier).lockTable},
	{name: Deadlock, rate: 4, least: 1, target: answering, carry: (*carrier).deadlock, takes: 3 * time.Second},

	{name: GatewayError, rate: 3, least: 1, longest: 2 * time.Second, args: everyThird, carry: (*carrier).strikeGateway, takes: time.Second},
	{name: GatewayLost, rate: 3, least: 1, longest: 2 * time.Second, args: everyThird, carry: (*carrier).strikeGateway, takes: time.Second},
	{name: GatewaySlow, rate: 2, least: 1, longest: 2 * time.Second, args: randomLatency, carry: (*carrier).strikeGateway, takes: time.Second},
}

// brokerBoot is the plan's estimate of a broker restart.
const brokerBoot = 10 * time.Second

func pickOne(r *rand.Rand, all []string) string { return all[r.IntN(len(all))] }

func anyProcess(r *rand.Rand) string { return pickOne(r, site.Processes()) }

func anyService(r *rand.Rand) string { return pickOne(r, site.Services()) }

// committer returns a process whose COMMITs can be lost, in two of three cases one of those that commit most.
func committer(r *rand.Rand) string {
	if r.IntN(3) == 0 {
		return anyService(r) + "-2"
	}
	return pickOne(r, []string{"order-2", "payment-2", "trip-2"})
}

// pickLink returns a link with traffic: a gateway does not use the broker.
func pickLink(r *rand.Rand) string {
	for {
		if link := pickOne(r, site.LinkNames()); link != "gateway-1 "+site.RabbitMQ {
			return link
		}
	}
}

// allServices is the target of faults that strike all services.
const allServices = "all"

// serviceOrAll returns allServices in one of four cases, otherwise a service.
func serviceOrAll(r *rand.Rand) string {
	if r.IntN(4) == 0 {
		return allServices
	}
	return anyService(r)
}

// inboxService returns a service with an inbox and an outbox, in two of three cases one of those that write
// most: a lock strikes only transactions that need it.
func inboxService(r *rand.Rand) string {
	if r.IntN(3) > 0 {
		return pickOne(r, []string{"order", "payment", "trip"})
	}
	for {
		if service := anyService(r); service != "gateway" {
			return service
		}
	}
}

// answering returns a service whose steps write to the outbox while they hold a row of the inbox. The order
// service's steps do not: they only record messages.
func answering(r *rand.Rand) string {
	for {
		if service := inboxService(r); service != "order" {
			return service
		}
	}
}

// deletableTopic returns a topic whose queues may be deleted.
func deletableTopic(r *rand.Rand) string { return pickOne(r, Deletable()) }

// Deletable returns the topics whose queues are deleted. The harness repairs only messages that an outbox has
// written. Other publishers must not send to these topics any message that must not be lost.
func Deletable() (names []string) {
	for _, t := range site.AllTopics() {
		if len(t.Steps) > 0 {
			names = append(names, t.Name)
		}
	}
	return names
}

// busy are topics with steady traffic and one queue. Without that queue the broker refuses their messages.
var busy = []string{"order.created", "shipment.arranged", "flight.book", "hotel.book", "saga.trip"}

// unboundTopic returns a topic whose bindings may be deleted, in three of four cases a busy one. It returns a
// topic with several queues only if their inboxes show missed messages.
func unboundTopic(r *rand.Rand) string {
	if r.IntN(4) > 0 {
		return pickOne(r, busy)
	}
	var names []string
	for _, t := range site.AllTopics() {
		if len(t.Services) == 1 || len(t.Steps) > 0 {
			names = append(names, t.Name)
		}
	}
	return pickOne(r, names)
}
