package private

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

const returnsBuffer = 1000

// A Sender is a channel in confirm mode. It counts messages that the broker returns: the broker confirms a
// returned message as well, so it would pass for delivered.
type Sender struct {
	ch       *amqp.Channel
	exchange string
	returned atomic.Int64
	watch    sync.WaitGroup
}

// NewSender returns a Sender to exchange on a channel of conn.
func NewSender(conn *amqp.Connection, exchange string) (*Sender, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	s := &Sender{ch: ch, exchange: exchange}
	returns := ch.NotifyReturn(make(chan amqp.Return, returnsBuffer))
	s.watch.Go(func() { // ends with the channel
		for range returns {
			s.returned.Add(1)
		}
	})
	return s, nil
}

// Publish sends a message. The broker has it once [Sender.AwaitConfirm] returns nil.
func (s *Sender) Publish(ctx context.Context, p amqp.Publishing) (*amqp.DeferredConfirmation, error) {
	return s.ch.PublishWithDeferredConfirmWithContext(ctx, s.exchange, "", true, false, p)
}

// AwaitConfirm waits until the broker has confirmed a message.
func (s *Sender) AwaitConfirm(ctx context.Context, sent *amqp.DeferredConfirmation) error {
	ok, err := sent.WaitContext(ctx)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("a message was nacked")
	case s.returned.Load() > 0:
		return errors.New("a message was returned")
	}
	return nil
}

// Close closes the channel.
func (s *Sender) Close() {
	_ = s.ch.Close()
	s.watch.Wait()
}
