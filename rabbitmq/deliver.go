package rabbitmq

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// deathsToRefuse is how many connections in a row the broker has to close over
// a message that is alone on them before the message is refused. A broker in
// trouble closes one with the same words.
const deathsToRefuse = 2

// deliver publishes what b has left on ch, or on a new channel of l, and
// returns the channel then in use. An error is for all that b has left after
// it: the outcome is unknown. If it is an exception that closed the shared
// connection, its culprit need not be in b: see isolate.
func (p *Publisher) deliver(ctx context.Context, l *link, ch *confirmChannel, b *batch) (*confirmChannel, error) {
	window, declaredAgain, alone := p.opts.Window, false, l != p.link
	culprit, deaths := -1, 0
	for b.next() >= 0 {
		var err error
		if ch, err = p.prepare(ctx, l, ch, b); err == nil {
			err = ch.publish(ctx, b, window)
		}
		e := exception(err)
		switch {
		case err == nil, errors.Is(err, errAgain):
			continue
		case e == nil, !e.Recover && !alone:
			return ch, err
		case e.Code == amqp.NotFound && !declaredAgain:
			declaredAgain = true
			p.destinations.forget()
			continue
		}
		i := -1
		if ch != nil {
			i = ch.alone()
		}
		if i != culprit {
			culprit, deaths = i, 0
		}
		deaths++
		switch {
		case i < 0 && window > 1:
			window = 1 // one of the window is the culprit: go on one by one
		case i < 0:
			return ch, err
		case e.Recover, deaths == deathsToRefuse:
			p.blame(b, i, e)
		}
	}
	return ch, nil
}

// blame refuses message i, which the broker ended the channel over. Where the
// exception is about the exchange, so is everything else that goes there.
func (p *Publisher) blame(b *batch, i int, e *amqp.Error) {
	switch to := b.letters[i].route.destination; {
	case !e.Recover: // its text can quote the payload
		b.resolve(i, fmt.Errorf("%w: the broker closes the connection over it: exception %d", ErrRejected, e.Code))
	case e.Code == amqp.AccessRefused, e.Code == amqp.NotFound:
		err := fmt.Errorf("%w: exchange %s: %w", ErrRejected, to.exchange, e)
		p.destinations.refuse(to, err, true)
		b.refuse(to, err)
	default:
		b.resolve(i, fmt.Errorf("%w: %w", ErrRejected, e))
	}
}

// isolate publishes what b has left on a connection of its own, because the
// broker closed the shared one over something that was sent on it: on its own
// b can meet the exception for its own messages only, and nobody else suffers
// from them. One batch does so at a time.
func (p *Publisher) isolate(ctx context.Context, b *batch, e *amqp.Error) error {
	ctx, cancel := p.link.bound(ctx)
	defer cancel()
	select {
	case p.isolating <- struct{}{}:
		defer func() { <-p.isolating }()
	case <-ctx.Done():
		return unavailable(ctx)
	}
	p.opts.Logger.WarnContext(ctx, "rabbitmq: the broker closed the connection over something that was sent; a batch goes on on a connection of its own",
		"name", p.opts.Connection.Name, "exception", e.Code)
	own := newLink(p.cfg, p.opts.Connection, p.opts.Logger)
	defer own.close()
	_, err := p.deliver(ctx, own, nil, b)
	if err != nil {
		own.cut() // nobody to say goodbye to, or no time
	}
	return err
}
