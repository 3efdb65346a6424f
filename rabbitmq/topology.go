package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
)

// DeployUser, behind the prefix, is the user that declares exchanges and queues. No service may have this
// name.
const DeployUser = "deploy"

// A Topology lists the topics that the services of an installation publish and listen to. In JSON it is the
// input of sagamill broker.
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
// reads its own queues and their dead-letter queues: since RabbitMQ 4.2.6, a user
// finds a queue only with some permission on it. So it can neither forge another
// service's messages nor read them, nor change how they are routed. It does no I/O.
// An error is an [ErrConfig].
func (t Topology) Permissions() ([]Permissions, error) {
	if err := t.checkNames(); err != nil {
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
			read = append(read, queue, queue+deadSuffix)
			exchanges, queues, dead = append(exchanges, t.Prefix+topic), append(queues, queue), append(dead, queue+deadSuffix)
		}
		all = append(all, limit(Permissions{User: t.Prefix + s.Name, Configure: nothing, Write: alternativesPattern(written), Read: alternativesPattern(read)}, len(s.Listens)))
	}
	// A binding writes to the queue and reads the exchange. A queue with a
	// dead-letter exchange, which is the default one here, reads itself and writes
	// to that.
	return slices.Insert(all, 0, limit(Permissions{
		User:      t.Prefix + DeployUser,
		Configure: alternativesPattern(slices.Concat(exchanges, queues, dead)),
		Write:     alternativesPattern(append(slices.Clone(queues), "amq.default")),
		Read:      alternativesPattern(slices.Concat(exchanges, queues)),
	}, 0)), nil
}

// checkNames returns an error for names that would be no names of exchanges and queues,
// or the same for two of them.
func (t Topology) checkNames() error {
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
			if topic == "" || len(topic) > outbox.MaxTopic || strings.ContainsFunc(t.Prefix+topic+s.Name, isControl) {
				return fmt.Errorf("%w: topic %q of service %q is empty, too long or not printable", ErrConfig, topic, s.Name)
			}
		}
	}
	// The broker has one list of names for both: a user with the right to read the queue could read the
	// exchange.
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

// isControl reports whether the broker would drop r from a name, or a terminal would act on it.
func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// alternativesPattern returns a regular expression of whole names: the broker itself searches
// anywhere in a name.
func alternativesPattern(names []string) string {
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

// ErrInUse reports that a queue which is to be deleted holds messages, or that somebody
// consumes from it.
var ErrInUse = errors.New("rabbitmq: in use")

// DeleteOptions are what [Topology.Delete] can be told besides.
type DeleteOptions struct {
	// Force deletes queues with the messages that they hold, and under their
	// consumers. Default: false.
	Force bool
	// DryRun looks, and deletes nothing. It cannot tell whether an exchange would
	// stay. Default: false.
	DryRun bool
}

// A Part is a queue or an exchange of a [Topology], as [Topology.FindParts] or [Topology.Delete] has found it.
type Part struct {
	Name      string
	Exchange  bool // or else a queue
	Found     bool // it was there
	Deleted   bool
	Messages  int // in a queue, to be delivered; messages in the hands of consumers are not counted
	Consumers int
	Shared    bool // an exchange that stays, because queues of others are bound to it

	from string // the exchange that a queue is bound to, none for a dead-letter queue
}

// InUse reports whether p is a queue that is not deleted without Force.
func (p *Part) InUse() bool { return p.Messages > 0 || p.Consumers > 0 }

// Delete deletes the queues that [DeclareTopology] declares for the services of t, and the
// exchanges of all their topics, at the broker of url. It returns everything that was there, in
// the order of the deletion. An exchange to which another queue is bound stays. Stop the services
// before: a running one declares its queues again, except with [ConfigOptions].Passive.
//
// If a queue holds messages or has consumers, nothing is deleted, also in a dry run: the error is
// an [ErrInUse] that names it. Otherwise each queue is unbound and looked at again before it is
// deleted. So messages that are published meanwhile are refused, and kept by the outbox, rather
// than deleted. A queue that got a message just before stays, and is an ErrInUse too;
// DeclareTopology binds it again. Only messages on their way at that very moment are deleted, and
// those still in the hands of a consumer that has gone.
//
// It waits for a broker that is away until ctx ends, and returns other errors as DeclareTopology
// does. Everything deleted before an error or a crash is gone. A second call deletes the rest, and
// nothing if nothing is left. It needs the permissions of [DeployUser].
func (t Topology) Delete(ctx context.Context, url string, opts *DeleteOptions) ([]Part, error) {
	return t.deleteTopology(ctx, url, opts, func() {})
}

// deleteTopology calls unbound, for tests, when the queues are unbound and not deleted yet.
func (t Topology) deleteTopology(ctx context.Context, url string, opts *DeleteOptions, unbound func()) ([]Part, error) {
	if opts == nil {
		opts = &DeleteOptions{}
	}
	var inUse error
	parts, err := t.visitParts(ctx, url, "delete", func(c *conn, parts []Part) error {
		err := deleteParts(ctx, c, parts, opts, unbound)
		if errors.Is(err, ErrInUse) {
			inUse, err = err, nil // an answer, which no retry changes
		}
		return err
	})
	return parts, cmp.Or(err, inUse)
}

// FindParts returns the queues and exchanges of t, and which of them the broker of url has: those that
// [DeclareTopology] declares for the services of t, and the exchanges of all their topics. It changes nothing. From
// RabbitMQ 4.2.6 on, its user needs some permission on each of them. It waits for a broker that is away until ctx ends,
// and returns other errors as DeclareTopology does.
func (t Topology) FindParts(ctx context.Context, url string) ([]Part, error) {
	return t.visitParts(ctx, url, "find", func(c *conn, parts []Part) error { return inspectParts(ctx, c, parts) })
}

// visitParts calls visit with a connection to the broker, and again after the connection is lost. verb says in an error
// what visit does.
func (t Topology) visitParts(ctx context.Context, url, verb string, visit func(*conn, []Part) error) ([]Part, error) {
	if err := t.checkNames(); err != nil || len(t.Services) == 0 {
		return nil, err
	}
	cfg, err := NewConfig(url, t.Services[0].Name, nil) // for its connection: all names are here
	if err != nil {
		return nil, err
	}
	sub, err := NewSubscriber(cfg, nil)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	parts := t.listParts()
	if err := sub.retryUntilDone(ctx, sub.link, t.Prefix+"*", func(c *conn) error { return visit(c, parts) }); err != nil {
		return parts, fmt.Errorf("rabbitmq: %s topology: %w", verb, err)
	}
	return parts, nil
}

// listParts returns all that may be there of t, each part before those that it needs.
func (t Topology) listParts() (all []Part) {
	var exchanges []string
	for _, s := range t.Services {
		for _, topic := range s.Listens {
			queue := t.Prefix + topic + "." + s.Name
			all = append(all, Part{Name: queue, from: t.Prefix + topic}, Part{Name: queue + deadSuffix})
		}
		for _, topic := range slices.Concat(s.Publishes, s.Listens) {
			exchanges = append(exchanges, t.Prefix+topic)
		}
	}
	slices.Sort(exchanges)
	for _, name := range slices.Compact(exchanges) {
		all = append(all, Part{Name: name, Exchange: true})
	}
	return all
}

func deleteParts(ctx context.Context, c *conn, parts []Part, opts *DeleteOptions, unbound func()) error {
	if err := inspectParts(ctx, c, parts); err != nil {
		return err
	}
	if !opts.Force {
		if err := refuseInUse(parts); err != nil {
			return err
		}
	}
	if opts.DryRun {
		return nil
	}
	for i := range parts {
		if err := parts[i].unbindPart(ctx, c); err != nil {
			return err
		}
	}
	unbound()
	for i := range parts {
		if i > 0 && parts[i].Name == parts[i-1].Name+deadSuffix && parts[i-1].Found && !parts[i-1].Deleted {
			continue // a queue that stays keeps where its messages would go
		}
		if err := parts[i].deletePart(ctx, c, opts.Force); err != nil {
			return err
		}
	}
	return refuseInUse(slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return p.Deleted }))
}

func inspectParts(ctx context.Context, c *conn, parts []Part) error {
	for i := range parts {
		if err := parts[i].inspectPart(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// refuseInUse returns an [ErrInUse] that says which queues are.
func refuseInUse(parts []Part) error {
	var used []string
	for i := range parts {
		if p := &parts[i]; p.InUse() {
			used = append(used, fmt.Sprintf("queue %s: %d messages, %d consumers", p.Name, p.Messages, p.Consumers))
		}
	}
	if len(used) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInUse, strings.Join(used, "; "))
}

// inspectPart asks the broker for p. Since RabbitMQ 4.2.6 that takes some permission on p.
func (p *Part) inspectPart(ctx context.Context, c *conn) error {
	if p.Deleted {
		return nil // by an attempt before, whose connection was lost
	}
	name, exchange := p.Name, p.Exchange
	q, err := requestOnChannel(ctx, c, func(ch *amqp.Channel) (amqp.Queue, error) {
		if exchange {
			return amqp.Queue{}, ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, false, nil)
		}
		return ch.QueueDeclarePassive(name, true, false, false, false, nil)
	})
	p.Found, p.Messages, p.Consumers = err == nil, q.Messages, q.Consumers
	if hasCode(err, amqp.NotFound) {
		err = nil
	}
	return p.explainFailure("look for", err)
}

// unbindPart lets nothing more into a queue. A missing binding or
// exchange is no error.
func (p *Part) unbindPart(ctx context.Context, c *conn) error {
	if !p.Found || p.Deleted || p.from == "" {
		return nil
	}
	queue, exchange := p.Name, p.from
	_, err := requestOnChannel(ctx, c, func(ch *amqp.Channel) (any, error) { return nil, ch.QueueUnbind(queue, "", exchange, nil) })
	if hasCode(err, amqp.NotFound) {
		err = nil
	}
	return p.explainFailure("unbind", err)
}

// deletePart deletes p unless it is still used. A quorum queue knows neither if-empty nor
// if-unused: RabbitMQ answers NOT_IMPLEMENTED.
func (p *Part) deletePart(ctx context.Context, c *conn, force bool) error {
	if !force && !p.Exchange {
		if err := p.inspectPart(ctx, c); err != nil || p.InUse() {
			return err
		}
	}
	if !p.Found || p.Deleted {
		return nil
	}
	name, exchange := p.Name, p.Exchange
	lost, err := requestOnChannel(ctx, c, func(ch *amqp.Channel) (int, error) {
		if exchange {
			return 0, ch.ExchangeDelete(name, true, false)
		}
		return ch.QueueDelete(name, false, false, false)
	})
	p.Messages = max(p.Messages, lost)
	if p.Exchange && hasCode(err, amqp.PreconditionFailed) {
		p.Shared = true
		return nil
	}
	p.Deleted = err == nil
	return p.explainFailure("delete", err)
}

func (p *Part) explainFailure(verb string, err error) error {
	if err == nil {
		return nil
	}
	kind := "queue"
	if p.Exchange {
		kind = "exchange"
	}
	return fmt.Errorf("%s %s %s: %w", verb, kind, p.Name, err)
}
