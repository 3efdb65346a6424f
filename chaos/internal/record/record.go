// Package record is what a chaos run leaves behind: a directory of files that
// everything is judged by afterwards, so that a run can be judged again by a
// better judge. The run writes them, and nobody changes them.
//
//	run.json             a Run: what was asked for, and of which build
//	schedule.jsonl       a Planned a line: what the seed had in store, which -replay takes
//	events.jsonl         an Event a line: what was done, when, and to whom
//	client.jsonl.gz      an Op a line: each request of a client, which never dies
//	injected.jsonl.gz    an Injection a line: what was published behind the services' backs
//	samples.jsonl        a Sample a line, every second
//	changes.jsonl.gz     a Change a line: what triggers saw of the services' tables
//	outbox.jsonl.gz      a Message a line: what the services' transactions have written
//	tables/S.T.jsonl.gz  a row a line, as JSON: the table T of schema S at the end
//	failpoints.log       a line for each point that has triggered
//	final.json           a Final: what was left when all was over
//	output/NAME.log      what a process has printed
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

// A Run is what was asked for.
type Run struct {
	Seed    uint64    `json:"seed"`
	Began   time.Time `json:"began"`
	Options Options   `json:"options"`

	Revision string   `json:"revision"` // of the sources; empty: not known
	Overlay  string   `json:"overlay"`  // of the build, with a planted bug; empty: none
	Required []string `json:"required"` // faults, and points as name=action, without which the run is void
	Versions []string `json:"versions"` // of Go, PostgreSQL, RabbitMQ and the machine
}

// Options are what a run can be asked for. With the seed they settle the
// schedule and the load, but not how they interleave.
type Options struct {
	Storm     time.Duration `json:"storm"`      // how long faults strike
	KillEvery time.Duration `json:"kill_every"` // between two SIGKILLs, on average
	Sagas     int           `json:"sagas"`      // that clients begin, at least
	Clients   int           `json:"clients"`    // that wait for an answer at the same time
	Trips     int           `json:"trips"`      // of a hundred sagas; the others are orders
	Replays   int           `json:"replays"`    // how often the whole history is published again

	BrokerKills, Crashes, Alarms int // SIGKILLs of the broker, immediate restarts of PostgreSQL, memory alarms

	// Drain is how long everything may take to be done once nothing strikes any more.
	// Default: DefaultDrain, as of a run that was made before there was a choice.
	Drain time.Duration `json:"drain,omitempty"`
}

// DefaultDrain is how soon everything must be done. A machine that others use is no
// place to judge that, and a run that is a test has more time.
const DefaultDrain = 30 * time.Second

// DrainWithin returns what Drain says, or its default.
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

// An Event is something that was done to the site, or that happened to it.
type Event struct {
	N      int    `json:"n,omitempty"` // of the Planned that it carries out
	At     At     `json:"at"`
	Until  At     `json:"until,omitempty"` // when it was over
	Fault  string `json:"fault"`           // or one of the other events below
	Target string `json:"target,omitempty"`
	Args   string `json:"args,omitempty"`
	Err    string `json:"err,omitempty"`  // it could not be done
	Open   int    `json:"open"`           // requests that were under way
	Hits   int    `json:"hits,omitempty"` // connections, sessions, commits, requests, messages or rows that it struck; 0: it has met nobody

	Repeated []Repeat `json:"repeated,omitempty"` // messages that were written once more, since it may have discarded them
}

// A Repeat is a message that the harness has put into its outbox once more.
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
	Kind   string `json:"kind"` // what is asked for, such as a card that is declined
	Want   string `json:"want"` // the status that the saga must end in; empty: any final one
	Method string `json:"method"`
	Tenant string `json:"tenant"`
	Key    string `json:"key"`
	Body   string `json:"body"` // digest of the request's
	Client int    `json:"client"`
	Call   At     `json:"call"`
	Return At     `json:"return"`

	Outcome string `json:"outcome"`
	Status  int    `json:"status,omitempty"`
	Problem string `json:"problem,omitempty"`  // type of a problem document
	Reply   string `json:"reply,omitempty"`    // digest of status, stored headers and body
	Replay  bool   `json:"replayed,omitempty"` // it was marked as a replay
	ID      string `json:"id,omitempty"`
	Amount  int64  `json:"amount,omitempty"`
	Err     string `json:"err,omitempty"`
	Leak    string `json:"leak,omitempty"` // names of the secrets that the answer has
}

// The outcomes of an Op.
const (
	OK      = "ok"      // answered, and meant
	Refused = "refused" // answered: certainly without effect, as 409, 422, 429
	Unknown = "unknown" // not answered, or 5xx: it may have had its effect, or may yet
)

// An Injection is a message that no service has published.
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
	What      string `json:"what,omitempty"`    // what is wrong with it: of poison the reason of the dead letter, a colon, and how

	Handled     bool `json:"handled,omitempty"`     // of a duplicate: every service that gets it had ended the step before
	Unconfirmed bool `json:"unconfirmed,omitempty"` // of poison: the broker has never said whether it has it
}

// The kinds of Injection.
const (
	Poison    = "poison"    // must end as a dead letter of each service that gets it, as it is
	Duplicate = "duplicate" // of a past message: must change nothing
	Replayed  = "replay"    // the same, when all was over: the whole history, shuffled
)

// A Sample is what a look at the site in the midst of the storm has seen.
type Sample struct {
	At          At             `json:"at"`
	Money       int64          `json:"money"`      // charges less refunds, in cents
	Unbalanced  []string       `json:"unbalanced"` // what was wrong in one snapshot of the database
	Backlog     map[string]int `json:"backlog"`    // messages not published, by schema
	Ready       map[string]int `json:"ready"`      // messages in queues, by queue
	Connections int            `json:"connections"`
	IdleInTx    int            `json:"idle_in_tx"`     // longer than ten seconds
	Processes   int            `json:"processes"`      // that are alive
	Leak        string         `json:"leak,omitempty"` // secrets that anybody could read in the database's list of sessions
	Done        int            `json:"done"`           // sagas that have ended
	Asked       bool           `json:"asked"`          // Money, Unbalanced and Done are of this moment: else it was too early to ask again, or not answered
	Err         string         `json:"err,omitempty"`
}

// A Change is one row that a statement has written, as a trigger saw it in the
// statement's own transaction: it is there only if that has committed.
type Change struct {
	Seq   int64     `json:"seq"` // in the order in which the rows were locked, for one row
	At    time.Time `json:"at"`
	Tx    uint64    `json:"tx"`
	Table string    `json:"table"` // schema.table
	Op    string    `json:"op"`    // INSERT, UPDATE or DELETE
	Saga  string    `json:"saga"`  // the order's or trip's id, or the instance of the step
	Key   string    `json:"key"`   // which row: scope|key|step|n for an inbox, a step's name, …
	State string    `json:"state"`
	What  string    `json:"what,omitempty"` // amount, attempts, revision
}

// A Message is what a transaction has written to an outbox.
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
	Delayed bool   `json:"delayed"`        // it was written to be published later
	Held    string `json:"held,omitempty"` // its state, if the relay still holds it: delayed, waiting, refused, dead
}

// A Queue is what a queue of the broker holds.
type Queue struct {
	Name             string `json:"name"`
	Ready, Unacked   int
	ConsumersPresent int  `json:"consumers"`
	Absent           bool `json:"absent,omitempty"` // it is not there
}

// A Stopped is how a process has ended when it was told to.
type Stopped struct {
	Name string        `json:"name"`
	Code int           `json:"code"` // -1: it had to be killed
	Took time.Duration `json:"took"`
}

// A Final is what was left when all was over.
type Final struct {
	Healed  At `json:"healed"`  // no fault strikes any more, and everything runs
	Drained At `json:"drained"` // nothing is left to be done; 0: never

	Left    []string  `json:"left"` // what was left to be done at the end of the drain's patience
	Queues  []Queue   `json:"queues"`
	Stopped []Stopped `json:"stopped"`

	Connections, IdleInTx, Locks int // of services, when all had stopped
	BrokerConnections            int

	CommitsLost   int `json:"commits_lost"`   // the server has never heard of the COMMIT
	RepliesLost   int `json:"replies_lost"`   // it has committed, its reply was swallowed
	GatewayErrors int `json:"gateway_errors"` // answered for the gateway
	GatewayLost   int `json:"gateway_lost"`   // the gateway's reply was swallowed
	Received      int `json:"received"`       // messages that the broker was sent, by relays and injections, before any replay

	// Fingerprints of all effects, and the goroutines of each process, before and after
	// each replay of the history.
	Effects    []string         `json:"effects"`
	Goroutines []map[string]int `json:"goroutines"`
}

// SpareGoroutines is how many more a process may have after a replay: connections come
// and go.
const SpareGoroutines = 20

// MoreGoroutines returns the processes that have more than they had, beyond that.
func MoreGoroutines(before, after map[string]int) (more []string) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if after[name] > before[name]+SpareGoroutines {
			more = append(more, name)
		}
	}
	return more
}
