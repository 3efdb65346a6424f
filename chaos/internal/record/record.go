// Package record is the evidence that a chaos run leaves: a directory of files. All judging reads these files,
// so a later and better judge can judge a run again. Only the run writes them.
//
//	run.json             a Run: the options and the build
//	schedule.jsonl       a Planned a line: the schedule drawn from the seed; -replay reads it
//	events.jsonl         an Event a line: each fault, start and exit, with time and target
//	client.jsonl.gz      an Op a line: each request of a client, which never dies
//	injected.jsonl.gz    an Injection a line: each message that no service published
//	samples.jsonl        a Sample a line, every second
//	changes.jsonl.gz     a Change a line: each write to the services' tables, by triggers
//	outbox.jsonl.gz      a Message a line: each message in an outbox
//	tables/S.T.jsonl.gz  a row a line, as JSON: the table T of schema S at the end
//	failpoints.log       a line for each point that has triggered
//	final.json           a Final: the state at the end
//	output/NAME.log      the output of a process
//
// Times are nanoseconds since Run.Began, by the clock of the run's own process.
package record

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// At is a moment of a run, as nanoseconds since it began.
type At = time.Duration

// A Run is the description of a run.
type Run struct {
	Seed    uint64    `json:"seed"`
	Began   time.Time `json:"began"`
	Options Options   `json:"options"`

	Revision string   `json:"revision"` // of the sources; empty: not known
	Overlay  string   `json:"overlay"`  // of the build, with a planted bug; empty: none
	Required []string `json:"required"` // faults, and points as name=action, without which the run is void
	Versions []string `json:"versions"` // of Go, PostgreSQL, RabbitMQ and the machine
}

// Options are the options of a run. With the seed they determine the schedule and the load, but not how they
// interleave.
type Options struct {
	Storm     time.Duration `json:"storm"`      // how long faults strike
	KillEvery time.Duration `json:"kill_every"` // between two SIGKILLs, on average
	Sagas     int           `json:"sagas"`      // number of sagas that clients begin, at least
	Clients   int           `json:"clients"`    // number of clients that wait for an answer at the same time
	Trips     int           `json:"trips"`      // of a hundred sagas; the others are orders
	Replays   int           `json:"replays"`    // how often the whole history is published again

	BrokerKills, Crashes, Alarms int // SIGKILLs of the broker, immediate restarts of PostgreSQL, memory alarms

	// Drain is the time allowed for finishing all work after the last fault. Default: DefaultDrain, also for
	// runs recorded before this option existed.
	Drain time.Duration `json:"drain,omitempty"`
}

// DefaultDrain is the default of Options.Drain. A shared machine may be slower for other reasons, so a run that
// is a test has more time.
const DefaultDrain = 30 * time.Second

// DrainWithin returns Drain or its default.
func (o Options) DrainWithin() time.Duration { return cmp.Or(o.Drain, DefaultDrain) }

// A Planned is a fault of the schedule.
type Planned struct {
	N      int           `json:"n"`
	At     At            `json:"at"` // since the storm began
	Fault  string        `json:"fault"`
	Target string        `json:"target,omitempty"` // a process, a link, a service, a queue
	Args   string        `json:"args,omitempty"`
	For    time.Duration `json:"for,omitempty"` // how long it lasts; 0: a moment
}

// An Event is a fault that was carried out, or another event of the site.
type Event struct {
	N      int    `json:"n,omitempty"` // number of its Planned
	At     At     `json:"at"`
	Until  At     `json:"until,omitempty"` // end of the fault
	Fault  string `json:"fault"`           // or one of the other events below
	Target string `json:"target,omitempty"`
	Args   string `json:"args,omitempty"`
	Err    string `json:"err,omitempty"`  // why it failed
	Open   int    `json:"open"`           // requests that were under way
	Hits   int    `json:"hits,omitempty"` // connections, sessions, commits, requests, messages or rows

	Repeated []Repeat `json:"repeated,omitempty"` // messages written again, because the fault may have discarded them
}

// A Repeat is a message that the harness has written to its outbox again.
type Repeat struct {
	MessageID string    `json:"message_id"`
	Written   time.Time `json:"written"` // for the first time
}

// Events that are no faults.
const (
	Phase = "phase" // Args: one of the phases
	Start = "start" // Target: a process; Args: the points it is armed with
	Exit  = "exit"  // Target: a process; Args: how it ended
)

// The phases of a run, in their order.
const (
	Warm   = "warm"
	Storm  = "storm"
	Heal   = "heal"
	Drain  = "drain"
	Replay = "replay"
	Stop   = "stop"
	Over   = "over"
)

// The sagas.
const (
	Order = "order"
	Trip  = "trip"
)

// An Op is a request of a client and its answer.
type Op struct {
	Saga   string `json:"saga"`
	Kind   string `json:"kind"` // name of a load.Kind, such as that of a declined card
	Want   string `json:"want"` // required final status of the saga; empty: any final status
	Method string `json:"method"`
	Tenant string `json:"tenant"`
	Key    string `json:"key"`
	Body   string `json:"body"` // digest of the request's body
	Client int    `json:"client"`
	Call   At     `json:"call"`
	Return At     `json:"return"`

	Outcome string `json:"outcome"`
	Status  int    `json:"status,omitempty"`
	Problem string `json:"problem,omitempty"`  // type of a problem document
	Reply   string `json:"reply,omitempty"`    // digest of status, stored headers and body
	Replay  bool   `json:"replayed,omitempty"` // the response was marked as a replay
	ID      string `json:"id,omitempty"`
	Amount  int64  `json:"amount,omitempty"`
	Err     string `json:"err,omitempty"`
	Leak    string `json:"leak,omitempty"` // names of the secrets in the answer
}

// The outcomes of an Op.
const (
	OK      = "ok"      // answered, and meant
	Refused = "refused" // certainly without effect, such as 409, 422, 429
	Unknown = "unknown" // no answer, or 5xx: it may have an effect, now or later
)

// An Injection is a message that the injector published.
type Injection struct {
	At        At     `json:"at"`
	Kind      string `json:"kind"`
	Topic     string `json:"topic"`
	MessageID string `json:"message_id"`
	Scope     string `json:"scope,omitempty"`
	Key       string `json:"key,omitempty"`
	Step      string `json:"step,omitempty"`
	N         string `json:"n,omitempty"`
	Payload   string `json:"payload,omitempty"` // digest
	What      string `json:"what,omitempty"`    // the defect; of poison the dead letter's reason, a colon, the variant

	Handled     bool `json:"handled,omitempty"`     // of a duplicate: every receiving service had ended the step before
	Unconfirmed bool `json:"unconfirmed,omitempty"` // of poison: the broker never confirmed or refused it
}

// The kinds of Injection.
const (
	Poison    = "poison"    // must end as a dead letter of each service that gets it, as it is
	Duplicate = "duplicate" // of a past message: must change nothing
	Replayed  = "replay"    // the same, after the run: the whole history, shuffled
)

// A Sample is one look at the site during the storm.
type Sample struct {
	At          At             `json:"at"`
	Money       int64          `json:"money"`      // charges less refunds, in cents
	Unbalanced  []string       `json:"unbalanced"` // contradictions in one snapshot of the database
	Backlog     map[string]int `json:"backlog"`    // messages not published, by schema
	Ready       map[string]int `json:"ready"`      // messages in queues, by queue
	Connections int            `json:"connections"`
	IdleInTx    int            `json:"idle_in_tx"`     // longer than ten seconds
	Processes   int            `json:"processes"`      // that are alive
	Leak        string         `json:"leak,omitempty"` // secrets in the database's list of sessions
	Done        int            `json:"done"`           // sagas that have ended
	Asked       bool           `json:"asked"`          // Money, Unbalanced and Done are of this moment, not an earlier one
	Err         string         `json:"err,omitempty"`
}

// A Change is one row that a statement has written, recorded by a trigger in the statement's transaction. It
// exists only if that transaction committed.
type Change struct {
	Seq   int64     `json:"seq"` // for one row, the order in which it was locked
	At    time.Time `json:"at"`
	Tx    uint64    `json:"tx"`
	Table string    `json:"table"` // schema.table
	Op    string    `json:"op"`    // INSERT, UPDATE or DELETE
	Saga  string    `json:"saga"`  // the order's or trip's id, or the instance of the step
	Key   string    `json:"key"`   // the row: scope|key|step|n for an inbox, a step's name, …
	State string    `json:"state"`
	What  string    `json:"what,omitempty"` // amount, attempts, revision
}

// A Message is a message that a transaction has written to an outbox.
type Message struct {
	Schema    string    `json:"schema"`
	ID        int64     `json:"id"`
	MessageID string    `json:"message_id"`
	Topic     string    `json:"topic"`
	Scope     string    `json:"scope"`
	Key       string    `json:"key"`
	Step      string    `json:"step"`
	N         string    `json:"n,omitempty"`
	Order     string    `json:"ordering_key,omitempty"`
	Tx        uint64    `json:"tx"`
	At        time.Time `json:"at"`

	Type    string `json:"type"`
	Payload string `json:"payload"`        // digest
	Delayed bool   `json:"delayed"`        // it had a delay when it was written
	Held    string `json:"held,omitempty"` // its state, if the relay still holds it: delayed, waiting, refused, dead
}

// A Queue is the depth of one queue of the broker.
type Queue struct {
	Name             string `json:"name"`
	Ready, Unacked   int
	ConsumersPresent int  `json:"consumers"`
	Absent           bool `json:"absent,omitempty"` // the queue does not exist
}

// A Stopped describes how a process ended after SIGTERM.
type Stopped struct {
	Name string        `json:"name"`
	Code int           `json:"code"` // -1: it had to be killed
	Took time.Duration `json:"took"`
}

// A Final is the state at the end of a run.
type Final struct {
	Healed  At `json:"healed"`  // all faults are over, and every process runs
	Drained At `json:"drained"` // all work is done; 0: never

	Left    []string  `json:"left"` // unfinished work when the wait for the drain ended
	Queues  []Queue   `json:"queues"`
	Stopped []Stopped `json:"stopped"`

	Connections, IdleInTx, Locks int // of services, when all had stopped
	BrokerConnections            int

	CommitsLost   int `json:"commits_lost"`   // COMMITs that the server never received
	RepliesLost   int `json:"replies_lost"`   // COMMITs that were executed and whose reply was dropped
	GatewayErrors int `json:"gateway_errors"` // errors that the proxy answered for the gateway
	GatewayLost   int `json:"gateway_lost"`   // replies of the gateway that the proxy dropped
	Received      int `json:"received"`       // messages that the broker received before any replay

	// Fingerprints of all effects, and the goroutines of each process, before and after
	// each replay of the history.
	Effects    []string         `json:"effects"`
	Goroutines []map[string]int `json:"goroutines"`
}

// SpareGoroutines is how many more goroutines a process may have after a replay, because its connections vary.
const SpareGoroutines = 20

// MoreGoroutines returns the processes with more goroutines than before plus SpareGoroutines.
func MoreGoroutines(before, after map[string]int) (more []string) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if after[name] > before[name]+SpareGoroutines {
			more = append(more, name)
		}
	}
	return more
}
