package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// errExchangeRefused reports that the messages to an exchange are resolved,
// because it cannot be declared, and that the channel is gone with it.
var errExchangeRefused = errors.New("exchange refused")

// A confirmChannel is a channel in confirm mode, used by one goroutine at a
// time. Between uses nothing is in flight on it, or it is abandoned.
type confirmChannel struct {
	conn      *conn
	amqp      *amqp.Channel
	cfg       wamqp.Config
	timeout   time.Duration
	closes    chan *amqp.Error
	returns   chan amqp.Return // holds a whole window: a full one would lose returns
	returned  map[string]amqp.Return
	declared  map[string]bool // exchanges
	maxHeader int             // bytes of a header frame
	abandoned bool
}

// A flight is a message that was sent and not yet answered.
type flight struct {
	index   int
	confirm *amqp.DeferredConfirmation
}

func openConfirmChannel(ctx context.Context, c *conn, p *Publisher) (*confirmChannel, error) {
	open := func() (*amqp.Channel, error) {
		ch, err := c.amqp.Channel()
		if err != nil {
			return nil, err
		}
		return ch, ch.Confirm(false)
	}
	ch, err := call(ctx, c, open, c.closeChannel)
	if err != nil {
		return nil, fmt.Errorf("%w: open channel: %w", ErrUnavailable, err)
	}
	return &confirmChannel{
		conn: c, amqp: ch, cfg: p.cfg, timeout: p.opts.ConfirmTimeout,
		closes:    ch.NotifyClose(make(chan *amqp.Error, 1)),
		returns:   ch.NotifyReturn(make(chan amqp.Return, p.opts.Window)),
		returned:  make(map[string]amqp.Return),
		declared:  make(map[string]bool),
		maxHeader: frameSize(c.amqp) - frameOverhead,
	}, nil
}

// abandon gives the channel up: answers that still come belong to messages
// whose results are out.
func (c *confirmChannel) abandon() {
	c.abandoned = true
	c.conn.closeChannel(c.amqp)
}

// publish sends what b has left, window messages at most ahead of their
// confirms. After an error some messages may have been sent and are not
// resolved. The error holds the broker's exception if that is what closed the
// channel.
func (c *confirmChannel) publish(ctx context.Context, b *batch, window int) error {
	if err := c.declare(ctx, b); err != nil {
		return err
	}
	var sent []flight
	inFlight := make(map[string]bool, window) // message ids
	settle := func() error {
		first := sent[0]
		sent = sent[1:]
		delete(inFlight, b.letters[first.index].MessageId)
		return c.settle(ctx, b, first)
	}
	for i := b.next(); i >= 0; i = b.after(i) {
		l := &b.letters[i]
		if size := headerSize(&l.Publishing); size > c.maxHeader {
			b.resolve(i, fmt.Errorf("%w: headers of %d bytes, the limit is %d", ErrTooLarge, size, c.maxHeader))
			continue
		}
		// A return names the message by its id alone, so an id is in flight once.
		for len(sent) >= window || inFlight[l.MessageId] {
			if err := settle(); err != nil {
				return err
			}
		}
		confirm, err := c.send(ctx, l)
		if err != nil {
			return err
		}
		sent = append(sent, flight{i, confirm})
		inFlight[l.MessageId] = true
	}
	for len(sent) > 0 {
		if err := settle(); err != nil {
			return err
		}
	}
	return nil
}

func (c *confirmChannel) send(ctx context.Context, l *letter) (*amqp.DeferredConfirmation, error) {
	if ctx.Err() != nil {
		return nil, unavailable(ctx)
	}
	if err := c.conn.unblocked(); err != nil {
		return nil, err
	}
	confirm, err := c.amqp.PublishWithDeferredConfirm(l.exchange, l.key, true, false, l.Publishing)
	if err != nil {
		return nil, c.lost()
	}
	return confirm, nil
}

// settle waits for the answer to f and resolves it. An error means that there
// was none.
func (c *confirmChannel) settle(ctx context.Context, b *batch, f flight) error {
	if err := c.await(ctx, f.confirm); err != nil {
		return err
	}
	if !f.confirm.Acked() {
		// The library nacks what is open when a channel ends: unknown.
		if c.amqp.IsClosed() {
			return c.lost()
		}
		b.resolve(f.index, ErrNacked)
		return nil
	}
	// The broker sends a return before its ack, and the library hands both over
	// in that order: it is in the buffer, if there is one.
	c.collectReturns()
	id := b.letters[f.index].MessageId
	if r, ok := c.returned[id]; ok {
		delete(c.returned, id)
		b.resolve(f.index, fmt.Errorf("%w: exchange %s: %d %s", ErrUnroutable, r.Exchange, r.ReplyCode, r.ReplyText))
		return nil
	}
	b.resolve(f.index, nil)
	return nil
}

func (c *confirmChannel) await(ctx context.Context, confirm *amqp.DeferredConfirmation) error {
	select {
	case <-confirm.Done():
		return nil
	default:
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case <-confirm.Done():
		return nil
	case <-ctx.Done():
		return unavailable(ctx)
	case <-c.conn.blocked.wait():
		return ErrBlocked
	case <-timer.C:
		return fmt.Errorf("%w: no confirm within %s", ErrUnavailable, c.timeout)
	}
}

func (c *confirmChannel) collectReturns() {
	for {
		select {
		case r, ok := <-c.returns:
			if !ok {
				return
			}
			r.Body = nil
			c.returned[r.MessageId] = r
		default:
			return
		}
	}
}

// lost says why the channel is closed.
func (c *confirmChannel) lost() error {
	select {
	case e := <-c.closes:
		if e != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, e)
		}
	case <-time.After(c.conn.limits.RequestTimeout):
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, amqp.ErrClosed)
}

// declare declares the exchanges of what b has left, once for this channel. It
// does so before anything is in flight, so an exception is this exchange's
// fault: its messages are refused, and the others go on without it.
func (c *confirmChannel) declare(ctx context.Context, b *batch) error {
	for i := b.next(); i >= 0; i = b.after(i) {
		name := b.letters[i].exchange
		if name == amqp.DefaultExchange || c.declared[name] {
			continue
		}
		_, err := call(ctx, c.conn, func() (any, error) {
			return nil, c.cfg.TopologyBuilder.ExchangeDeclare(c.amqp, name, c.cfg)
		}, nil)
		if e := exception(err); e != nil {
			b.refuse(name, fmt.Errorf("%w: declare exchange %s: %w", ErrRejected, name, e))
			return errExchangeRefused
		}
		if err != nil {
			return fmt.Errorf("%w: declare exchange %s: %w", ErrUnavailable, name, err)
		}
		c.declared[name] = true
	}
	return nil
}
