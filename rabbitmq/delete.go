package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

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

// A Part is a queue or an exchange of a [Topology], as [Topology.Delete] has found it.
type Part struct {
	Name      string
	Exchange  bool // or else a queue
	Found     bool // it was there
	Deleted   bool
	Messages  int // in a queue, to be delivered; what consumers have in hand is not counted
	Consumers int
	Shared    bool // an exchange that stays, because queues of others are bound to it

	from string // the exchange that a queue is bound to, none for a dead-letter queue
}

// InUse reports whether p is a queue that is not deleted without Force.
func (p *Part) InUse() bool { return p.Messages > 0 || p.Consumers > 0 }

// Delete deletes the queues that [DeclareTopology] declares for the services of t, and
// the exchanges of all their topics, at the broker of url, and returns what there was in
// the order in which it goes. An exchange to which a queue of somebody else is bound
// stays. Stop the services before: one that runs declares its queues again, but for
// [ConfigOptions].Passive.
//
// If a queue holds messages or has consumers, nothing is deleted: the error is an
// [ErrInUse] that names it, also in a dry run. Otherwise each queue is unbound and looked
// at again before it is deleted, so that what is published meanwhile is refused, and kept
// by the outbox, rather than deleted; a queue that got a message just before stays, and
// is an ErrInUse too. DeclareTopology binds it again. Only what is on its way at that
// very moment is deleted, and what a consumer that has gone has in hand still.
//
// It waits for a broker that is away until ctx ends, and returns other errors as
// DeclareTopology does. What was deleted before an error or a crash is gone; calling
// again deletes the rest, and nothing if nothing is left. It needs the permissions of
// [DeployUser].
func (t Topology) Delete(ctx context.Context, url string, opts *DeleteOptions) ([]Part, error) {
	return t.delete(ctx, url, opts, func() {})
}

// delete calls unbound, for tests, when the queues are unbound and not deleted yet.
func (t Topology) delete(ctx context.Context, url string, opts *DeleteOptions, unbound func()) ([]Part, error) {
	if opts == nil {
		opts = &DeleteOptions{}
	}
	if err := t.check(); err != nil || len(t.Services) == 0 {
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
	parts := t.parts()
	var inUse error
	err = sub.persist(ctx, sub.link, t.Prefix+"*", func(c *conn) error {
		err := deleteParts(ctx, c, parts, opts, unbound)
		if errors.Is(err, ErrInUse) {
			inUse, err = err, nil // an answer, which no retry changes
		}
		return err
	})
	if err != nil {
		return parts, fmt.Errorf("rabbitmq: delete topology: %w", err)
	}
	return parts, inUse
}

// parts returns all that may be there of t: what goes before what it needs.
func (t Topology) parts() (all []Part) {
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
	for i := range parts {
		if err := parts[i].look(ctx, c); err != nil {
			return err
		}
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
		if err := parts[i].unbind(ctx, c); err != nil {
			return err
		}
	}
	unbound()
	for i := range parts {
		if i > 0 && parts[i].Name == parts[i-1].Name+deadSuffix && parts[i-1].Found && !parts[i-1].Deleted {
			continue // a queue that stays keeps where its messages would go
		}
		if err := parts[i].delete(ctx, c, opts.Force); err != nil {
			return err
		}
	}
	return refuseInUse(slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return p.Deleted }))
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

// look asks the broker for p. That takes no permission.
func (p *Part) look(ctx context.Context, c *conn) error {
	if p.Deleted {
		return nil // by an attempt before, whose connection was lost
	}
	name, exchange := p.Name, p.Exchange
	q, err := ask(ctx, c, func(ch *amqp.Channel) (amqp.Queue, error) {
		if exchange {
			return amqp.Queue{}, ch.ExchangeDeclarePassive(name, amqp.ExchangeFanout, true, false, false, false, nil)
		}
		return ch.QueueDeclarePassive(name, true, false, false, false, nil)
	})
	p.Found, p.Messages, p.Consumers = err == nil, q.Messages, q.Consumers
	if isCode(err, amqp.NotFound) {
		err = nil
	}
	return p.explain("look for", err)
}

// unbind lets nothing more into a queue. A binding or an exchange that is not there is
// none.
func (p *Part) unbind(ctx context.Context, c *conn) error {
	if !p.Found || p.Deleted || p.from == "" {
		return nil
	}
	queue, exchange := p.Name, p.from
	_, err := ask(ctx, c, func(ch *amqp.Channel) (any, error) { return nil, ch.QueueUnbind(queue, "", exchange, nil) })
	if isCode(err, amqp.NotFound) {
		err = nil
	}
	return p.explain("unbind", err)
}

// delete deletes p unless it is still used. A quorum queue knows neither if-empty nor
// if-unused: RabbitMQ answers NOT_IMPLEMENTED.
func (p *Part) delete(ctx context.Context, c *conn, force bool) error {
	if !force && !p.Exchange {
		if err := p.look(ctx, c); err != nil || p.InUse() {
			return err
		}
	}
	if !p.Found || p.Deleted {
		return nil
	}
	name, exchange := p.Name, p.Exchange
	lost, err := ask(ctx, c, func(ch *amqp.Channel) (int, error) {
		if exchange {
			return 0, ch.ExchangeDelete(name, true, false)
		}
		return ch.QueueDelete(name, false, false, false)
	})
	p.Messages = max(p.Messages, lost)
	if p.Exchange && isCode(err, amqp.PreconditionFailed) {
		p.Shared = true
		return nil
	}
	p.Deleted = err == nil
	return p.explain("delete", err)
}

func (p *Part) explain(verb string, err error) error {
	if err == nil {
		return nil
	}
	kind := "queue"
	if p.Exchange {
		kind = "exchange"
	}
	return fmt.Errorf("%s %s %s: %w", verb, kind, p.Name, err)
}
