package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/brokerurls"
	"github.com/sagamill/sagamill/outbox"
)

// deadSuffix is the suffix of the queue for messages that the broker itself dead-letters.
const deadSuffix = ".dead"

const (
	// deliveryLimit is how often a quorum queue gives a message out before it
	// moves it to the dead-letter queue. Attempts are counted in Postgres: the
	// limit is for a message that never gets that far, because the AMQP client
	// cannot read it. It is explicit since from version 4.0 the default is 20.
	deliveryLimit = 1000

	// noLimit is that of the dead-letter queues, which have nowhere to move a
	// message to: the broker would drop it.
	noLimit = 1 << 30
)

// disconnectedTimeout is how long a queue waits for the lost node of a consumer, before it delivers to others.
const disconnectedTimeout = time.Second

// maxShortString is what an AMQP short string can hold.
const maxShortString = 255

// maxName limits prefix and service together. Then every name made of them and a topic of
// [outbox.MaxTopic] bytes is a short string.
const maxName = maxShortString - outbox.MaxTopic - len(".") - len(deadSuffix)

// ConfigOptions are optional settings of [NewConfig].
type ConfigOptions struct {
	// Prefix is the beginning of the name of every exchange and queue. With the service's
	// name it may have up to 49 bytes. Default: none.
	Prefix string
	// SingleActiveConsumer lets the broker deliver to only one consumer of a queue at
	// a time, so that [SubscriberOptions].Key keeps the order across all consumers.
	// It is an argument of the queue: a queue that exists without it has to be
	// deleted first. Default: false.
	SingleActiveConsumer bool
	// With Passive, publisher and subscriber declare no exchanges, queues or bindings. Exchanges, queues and bindings are
	// made beforehand, by [DeclareTopology] or sagamill broker declare as a user with that
	// permission. A service's own user needs no permission to configure anything; see
	// [Topology.Permissions]. A Subscriber then waits for
	// a missing queue, and messages to a missing exchange are refused. An exchange, queue or
	// binding that somebody deletes is not made again. Only the Publisher notices a missing
	// binding: its messages are [ErrUnroutable]. Default: false.
	Passive bool
	// Dial replaces the TCP connection to the broker at addr (host:port), for example by a connection through a proxy;
	// Dial must return when ctx ends, such as after DialTimeout. The ctx also ends when another address was faster, or
	// when Close is called. TLS is on top of what it returns. It may be called by several goroutines at once. A Dial of
	// Connection.AmqpConfig wins, and a Config whose TopologyBuilder is replaced loses this one. Default: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// NewConfig returns the settings with which service takes part: one durable
// fanout exchange per topic, and one durable quorum queue per topic and
// service, named <prefix><topic>.<service>. service must not contain a dot, so
// that no two queues have the same name. It does no I/O.
//
// url may name up to 32 brokers of one cluster, separated by commas: "amqp://u:p@a:5672/vhost,
// amqp://u:p@b:5672/vhost". Each Publisher and subscription has a connection to one of them,
// chosen at random. It goes to another broker at once when that connection is lost or cannot be
// made, and when an alarm blocks it for a second. For 10 s it prefers the others to the broker
// that it has left. A comma separates where amqp:// or amqps:// follows it. All must name the same
// virtual host.
//
// A message that a queue gives up on goes to the quorum queue <queue>.dead, by the default
// exchange, which cannot be deleted. Nothing should arrive there.
//
// The arguments of the queues are constants, the same for every version of the
// broker: a declaration that changed with the version would be refused after
// an upgrade.
//
// An error is an [ErrConfig]. It does not repeat url, which holds a password, but says which
// of several it is about.
func NewConfig(url, service string, opts *ConfigOptions) (wamqp.Config, error) {
	if opts == nil {
		opts = &ConfigOptions{}
	}
	fault := checkAddresses(brokerurls.Split(url))
	switch {
	case fault != "":
		return wamqp.Config{}, fmt.Errorf("%w: %s", ErrConfig, fault)
	case service == "" || strings.Contains(service, ".") || "."+service == deadSuffix:
		return wamqp.Config{}, fmt.Errorf("%w: service %q is empty, reserved or contains a dot", ErrConfig, service)
	case len(opts.Prefix)+len(service) > maxName:
		return wamqp.Config{}, fmt.Errorf("%w: prefix and service have more than %d bytes together", ErrConfig, maxName)
	}
	arguments := quorumArguments(deliveryLimit)
	if opts.SingleActiveConsumer {
		arguments[amqp.SingleActiveConsumerArg] = true
	}
	exchange := func(topic string) string { return opts.Prefix + topic }
	noKey := func(string) string { return "" }
	return wamqp.Config{
		Connection: wamqp.ConnectionConfig{AmqpURI: url},
		Marshaler:  Marshaler{},
		Exchange:   wamqp.ExchangeConfig{GenerateName: exchange, Type: amqp.ExchangeFanout, Durable: true},
		Queue: wamqp.QueueConfig{
			GenerateName: func(topic string) string { return exchange(topic) + "." + service },
			Durable:      true,
			Arguments:    arguments,
		},
		QueueBind:       wamqp.QueueBindConfig{GenerateRoutingKey: noKey},
		Publish:         wamqp.PublishConfig{GenerateRoutingKey: noKey, Mandatory: true, ConfirmDelivery: true},
		TopologyBuilder: &quorumTopology{passive: opts.Passive, dialer: opts.Dial},
	}, nil
}

// quorumArguments are the arguments of every queue of [NewConfig], dead-letter
// queues included.
func quorumArguments(limit int32) amqp.Table {
	return amqp.Table{
		amqp.QueueTypeArg:  amqp.QueueTypeQuorum,
		"x-delivery-limit": limit,
		// From version 4.3 on, a queue waits for this time (else a minute) before it gives to others what it has sent
		// to a node that died or was cut off. Earlier versions ignore the argument, and do so at once.
		"x-consumer-disconnected-timeout": int32(disconnectedTimeout / time.Millisecond),
		// At-least-once dead-lettering needs reject-publish: with drop-head a
		// message could be dropped to make room for another. (A policy that says
		// otherwise counts more.)
		amqp.QueueOverflowArg: amqp.QueueOverflowRejectPublish,
	}
}

// quorumTopology declares the queues of [NewConfig]. Unlike watermill-amqp's
// builder it knows that each queue has a dead-letter queue.
type quorumTopology struct {
	wamqp.DefaultTopologyBuilder
	passive bool        // it only checks that things exist
	hidden  atomic.Bool // the user may not look for dead-letter queues
	dialer  dialer
}

// errDeadHidden reports that the user may not look for a dead-letter queue, and that the channel is closed. The queue
// itself is there. From then on no dead-letter queue is looked for.
var errDeadHidden = errors.New("look for dead-letter queue")

// ExchangeDeclare declares an exchange, or looks for it.
func (t *quorumTopology) ExchangeDeclare(ch *amqp.Channel, exchange string, cfg wamqp.Config) error {
	if t.passive {
		return ch.ExchangeDeclarePassive(exchange, cfg.Exchange.Type, cfg.Exchange.Durable, false, false, false, nil)
	}
	return t.DefaultTopologyBuilder.ExchangeDeclare(ch, exchange, cfg)
}

// BuildTopology declares the dead-letter queue first: a message must never
// find its dead-letter queue missing.
//
// If it only looks, it does not look for the exchange: RabbitMQ answers only those who have some permission on it, and
// each of them would let a consumer change what reaches others.
func (t *quorumTopology) BuildTopology(ch *amqp.Channel, params wamqp.BuildTopologyParams, cfg wamqp.Config, log watermill.LoggerAdapter) error {
	dead := params.QueueName + deadSuffix
	if t.passive {
		for _, queue := range []string{params.QueueName, dead} {
			if queue == dead && t.hidden.Load() {
				continue
			}
			_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			if queue == dead && hasCode(err, amqp.AccessRefused) {
				t.hidden.Store(true)
				return fmt.Errorf("%w: %w", errDeadHidden, err)
			}
			if err != nil {
				return fmt.Errorf("look for queue %s: %w", queue, err)
			}
		}
		return nil
	}
	if _, err := ch.QueueDeclare(dead, true, false, false, false, quorumArguments(noLimit)); err != nil {
		return fmt.Errorf("declare queue %s: %w", dead, err)
	}
	args := maps.Clone(cfg.Queue.Arguments)
	args["x-dead-letter-exchange"] = amqp.DefaultExchange
	args["x-dead-letter-routing-key"] = dead
	args["x-dead-letter-strategy"] = "at-least-once"
	cfg.Queue.Arguments = args
	return t.DefaultTopologyBuilder.BuildTopology(ch, params, cfg, log)
}

// DeclareTopology declares the exchange of each topic, and the queue in which the service of cfg
// gets its messages. Call it for topics that a service listens to, never for topics that it only
// publishes: their queue would never be emptied.
//
// Call it for every service that listens, with the Config of each, before the first message is published.
// RabbitMQ keeps a message only for the queues that exist by then. A service whose queue comes later does not
// get it, without an error as long as another service has a queue. An exchange without any queue refuses
// every message. A process that publishes may declare for all services that listen, as the order example
// does.
//
// It waits for a broker that is away until ctx ends. It returns at once if the
// broker refuses, as it does when a queue exists with other arguments; a wrong
// password is reported after the broker has cut three logins in a row, which takes some
// ten seconds. An error of a login names user, host and virtual host. What
// was declared before an error or a crash stays; calling again is harmless,
// and so are concurrent calls. With [ConfigOptions].Passive it declares nothing,
// and waits until the queues are there.
func DeclareTopology(ctx context.Context, cfg wamqp.Config, topics ...string) error {
	sub, err := NewSubscriber(cfg, nil)
	if err != nil {
		return err
	}
	defer sub.Close()
	for _, topic := range topics {
		if err := sub.declareQueue(ctx, topic); err != nil {
			return err
		}
	}
	return nil
}

// buildTopology declares what a subscription to topic needs.
func buildTopology(ch *amqp.Channel, cfg wamqp.Config, topic string) error {
	params := wamqp.BuildTopologyParams{Topic: topic, QueueName: cfg.Queue.GenerateName(topic), ExchangeName: cfg.Exchange.GenerateName(topic)}
	if cfg.QueueBind.GenerateRoutingKey != nil {
		params.RoutingKey = cfg.QueueBind.GenerateRoutingKey(topic)
	}
	for _, name := range []string{params.QueueName, params.ExchangeName, params.RoutingKey} {
		if len(name) > maxShortString {
			return fmt.Errorf("%w: a name of topic %.40q has %d bytes, the limit is %d", ErrConfig, topic, len(name), maxShortString)
		}
	}
	if err := cfg.TopologyBuilder.BuildTopology(ch, params, cfg, watermill.NopLogger{}); err != nil {
		return fmt.Errorf("declare topology of %s: %w", topic, err)
	}
	return nil
}

// normalizeConfig fills in the fields that a Config may leave open. It replaces the Marshaler of
// watermill-amqp, which refuses deliveries with headers that are not strings, such as those of a quorum
// queue, for ever.
func normalizeConfig(cfg wamqp.Config) (wamqp.Config, error) {
	fault := checkAddresses(brokerurls.Split(cfg.Connection.AmqpURI))
	switch {
	case fault != "":
		return cfg, fmt.Errorf("%w: Connection.AmqpURI: %s", ErrConfig, fault)
	case cfg.Exchange.GenerateName == nil:
		return cfg, fmt.Errorf("%w: Exchange.GenerateName is missing", ErrConfig)
	case declaresStream(cfg):
		return cfg, fmt.Errorf("%w: Queue.Arguments make the queue a stream, which gives nothing back that was not acked; use a quorum or classic queue", ErrConfig)
	}
	if _, theirs := cfg.Marshaler.(wamqp.DefaultMarshaler); theirs || cfg.Marshaler == nil {
		cfg.Marshaler = Marshaler{}
	}
	if cfg.TopologyBuilder == nil {
		cfg.TopologyBuilder = &wamqp.DefaultTopologyBuilder{}
	}
	return cfg, nil
}
