package rabbitmq

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/outbox"
)

// DeployUser, behind the prefix, is the user who declares exchanges and queues. No
// service may have this name.
const DeployUser = "deploy"

// A Topology is what the services of an installation publish and listen to. In
// JSON it is what sagamill broker reads.
type Topology struct {
	// Prefix is that of [ConfigOptions]. It begins the names of the users, too:
	// those belong to the whole broker.
	Prefix   string    `json:"prefix"`
	Services []Service `json:"services"`
	// Processes is how many processes of a service there may be, both generations
	// of a deployment counted. The limits of the users are made of it. Default: 4.
	Processes int `json:"processes,omitempty"`
}

// A Service is one of a [Topology].
type Service struct {
	Name      string   `json:"name"` // as given to [NewConfig]
	Publishes []string `json:"publishes,omitempty"`
	Listens   []string `json:"listens,omitempty"`
	// SingleActiveConsumer is that of [ConfigOptions].
	SingleActiveConsumer bool `json:"single_active_consumer,omitempty"`
}

// Permissions are what one user of the broker may do. Configure, Write and Read
// are the regular expressions of rabbitmqctl set_permissions, of whole names.
//
// Topic permissions are not among them: the broker asks for those at exchanges of
// the type topic, and [NewConfig] makes none.
type Permissions struct {
	User                   string
	Configure, Write, Read string
	MaxConnections         int // of rabbitmqctl set_user_limits, like MaxChannels
	MaxChannels            int
}

// The connections and channels of a process: a Publisher has one connection, and
// another one while it isolates a message; a Subscriber has one for declarations, and one
// for each topic that it consumes. As much again is for connections that have died and
// that the broker still believes in.
const (
	defaultProcesses      = 4
	connectionsOfAProcess = 3 // and those of the topics
	deadAndAlive          = 2
	channelsOfAConnection = 16 // Channels, or topics, and those of declarations
)

// nothing matches no name: the broker asks for its default exchange, which has
// none, under the name amq.default.
const nothing = "^$"

// Permissions returns the least that the users of t need: first [DeployUser], who
// calls [DeclareTopology] for all, then each service's, in the order of t. A
// service's user is named <prefix><service>. With [ConfigOptions].Passive it
// configures nothing, writes to the exchanges of the topics that it publishes, and
// reads its own queues; so it can neither forge another service's messages nor read
// them, nor change how they are routed. It does no I/O. An error is an [ErrConfig].
func (t Topology) Permissions() ([]Permissions, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	processes := cmp.Or(t.Processes, defaultProcesses)
	limit := func(p Permissions, topics int) Permissions {
		p.MaxConnections = processes * deadAndAlive * (connectionsOfAProcess + topics)
		p.MaxChannels = channelsOfAConnection * p.MaxConnections
		return p
	}
	var all []Permissions
	var exchanges, queues, dead []string
	for _, s := range t.Services {
		var written, read []string
		for _, topic := range s.Publishes {
			written = append(written, t.Prefix+topic)
		}
		for _, topic := range s.Listens {
			queue := t.Prefix + topic + "." + s.Name
			read = append(read, queue)
			exchanges, queues, dead = append(exchanges, t.Prefix+topic), append(queues, queue), append(dead, queue+deadSuffix)
		}
		all = append(all, limit(Permissions{User: t.Prefix + s.Name, Configure: nothing, Write: oneOf(written), Read: oneOf(read)}, len(s.Listens)))
	}
	// A binding writes to the queue and reads the exchange. A queue with a
	// dead-letter exchange, which is the default one here, reads itself and writes
	// to that.
	return slices.Insert(all, 0, limit(Permissions{
		User:      t.Prefix + DeployUser,
		Configure: oneOf(slices.Concat(exchanges, queues, dead)),
		Write:     oneOf(append(slices.Clone(queues), "amq.default")),
		Read:      oneOf(slices.Concat(exchanges, queues)),
	}, 0)), nil
}

// check returns an error for names that would be no names of exchanges and queues,
// or the same for two of them.
func (t Topology) check() error {
	seen := map[string]bool{DeployUser: true}
	exchanges, queues := map[string]bool{}, map[string]bool{}
	for _, s := range t.Services {
		if _, err := NewConfig("amqp://localhost", s.Name, &ConfigOptions{Prefix: t.Prefix}); err != nil {
			return err
		}
		if seen[s.Name] {
			return fmt.Errorf("%w: service %s is there twice, or has a reserved name", ErrConfig, s.Name)
		}
		seen[s.Name] = true
		for _, topic := range s.Listens {
			queues[topic+"."+s.Name], queues[topic+"."+s.Name+deadSuffix] = true, true
		}
		for _, topic := range slices.Concat(s.Publishes, s.Listens) {
			exchanges[topic] = true
			if topic == "" || len(topic) > outbox.MaxTopic || strings.ContainsFunc(t.Prefix+topic+s.Name, control) {
				return fmt.Errorf("%w: topic %q of service %q is empty, too long or not printable", ErrConfig, topic, s.Name)
			}
		}
	}
	// The broker has one list of names for both: who may read the queue could read
	// the exchange.
	for topic := range exchanges {
		if queues[topic] {
			return fmt.Errorf("%w: the exchange of topic %q is named like a queue", ErrConfig, topic)
		}
	}
	if t.Processes < 0 {
		return fmt.Errorf("%w: Topology.Processes is negative", ErrConfig)
	}
	return nil
}

// control reports what the broker would leave out of a name, or a terminal obey.
func control(r rune) bool { return r < ' ' || r == 0x7f }

// oneOf returns a regular expression of whole names: the broker itself searches
// anywhere in a name.
func oneOf(names []string) string {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nothing
	}
	for i := range names {
		names[i] = regexp.QuoteMeta(names[i])
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
