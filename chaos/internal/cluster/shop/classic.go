package shop

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// deadSuffix is the suffix of the names of the broker's dead-letter queues.
const deadSuffix = ".dead"

// A classicTopology declares classic queues where package rabbitmq declares quorum queues. A classic queue has
// no delivery limit and no choice of its dead-letter strategy.
type classicTopology struct{ wamqp.DefaultTopologyBuilder }

// BuildTopology declares the dead-letter queue, then exchange, queue and binding.
func (t *classicTopology) BuildTopology(ch *amqp.Channel, params wamqp.BuildTopologyParams, cfg wamqp.Config, log watermill.LoggerAdapter) error {
	dead := params.QueueName + deadSuffix
	if _, err := ch.QueueDeclare(dead, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		return fmt.Errorf("declare queue %s: %w", dead, err)
	}
	cfg.Queue.Arguments = amqp.Table{
		amqp.QueueTypeArg:           amqp.QueueTypeClassic,
		"x-dead-letter-exchange":    amqp.DefaultExchange,
		"x-dead-letter-routing-key": dead,
	}
	return t.DefaultTopologyBuilder.BuildTopology(ch, params, cfg, log)
}
