package cluster

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// brokerPatience bounds a look at the queues.
const brokerPatience = 10 * time.Second

// queueDepths returns how many messages are ready in queues.
func (r *shift) queueDepths(queues []string) (ready int, err error) {
	err = r.onChannel(func(ch *amqp.Channel) error {
		for _, name := range queues {
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if err != nil {
				return fmt.Errorf("queue %s: %w", name, err)
			}
			ready += q.Messages
		}
		return nil
	})
	return ready, err
}

// deleteQueues deletes queues, so that they do not disturb the next shop.
func (r *shift) deleteQueues(queues []string) error {
	return r.onChannel(func(ch *amqp.Channel) error {
		var errs []error
		for _, name := range queues {
			_, err := ch.QueueDelete(name, false, false, false)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// onChannel calls do with a channel to the first node that accepts a connection.
func (r *shift) onChannel(do func(*amqp.Channel) error) error {
	var errs []error
	for _, url := range r.cluster.URLs() {
		conn, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(brokerPatience), Heartbeat: brokerPatience})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(brokerPatience)) }()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		return do(ch)
	}
	return errors.Join(errs...)
}
