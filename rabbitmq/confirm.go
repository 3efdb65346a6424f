package rabbitmq

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A confirmChannel is a channel in confirm mode, used by one goroutine at a
// time. Between uses nothing is in flight on it, or it is abandoned.
//
// A channel that was nacked once is abandoned as well. RabbitMQ's client of quorum queues
// (rabbit_fifo_client in 3.10) keeps what it once learned of a queue for the life of the
// channel: if its first publish to a queue comes between the death of the leader and the
// election, every later one is nacked until the dead node is back. A new channel is not
// affected.
type confirmChannel struct {
	conn      *conn
	amqp      *amqp.Channel
	known     *destinations
	patiences *patiences
	timer     *time.Timer // for the wait for a confirm
	closes    chan *amqp.Error
	returns   chan amqp.Return // holds a whole window: a full one would lose returns
	returned  map[string]amqp.Return
	maxHeader int // bytes of a header frame
	abandoned bool
	nacked    bool // once

	// What is in flight: sent, or being sent, and not yet answered.
	flights []flight // those before settled are answered
	settled int
	ids     map[string]bool
}

// A flight is a message in flight.
type flight struct {
	index   int
	sent    time.Time
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
		return nil, unanswered(ctx, "open channel", err)
	}
	timer := time.NewTimer(p.opts.ConfirmTimeout)
	timer.Stop()
	opened := &confirmChannel{
		conn: c, amqp: ch, known: &p.destinations, patiences: &p.patiences, timer: timer,
		closes:    ch.NotifyClose(make(chan *amqp.Error, 1)),
		returns:   ch.NotifyReturn(make(chan amqp.Return, p.opts.Window)),
		returned:  make(map[string]amqp.Return),
		flights:   make([]flight, 0, p.opts.Window),
		ids:       make(map[string]bool, p.opts.Window),
		maxHeader: frameSize(c.amqp) - frameOverhead,
	}
	if ch.IsClosed() { // before it could be heard why
		return nil, unanswered(ctx, "open channel", amqp.ErrClosed)
	}
	p.signals.opened.Send(true)
	return opened, nil
}

// unanswered returns the error of a request: the reason why ctx ended, if that
// is why.
func unanswered(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return unavailable(ctx)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}

// abandon gives the channel up: answers that still come belong to messages
// whose results are out.
func (c *confirmChannel) abandon() {
	c.abandoned = true
	c.conn.closeChannel(c.amqp)
}

// publish sends what b has left, window messages at most ahead of their
// confirms: first what goes to destinations in good standing, then, one by one,
// what goes to suspects. After an error what is in flight is not resolved, and
// the channel is abandoned with it. The error holds the broker's exception if
// that is what closed the channel.
func (c *confirmChannel) publish(ctx context.Context, b *batch, window int) error {
	c.flights, c.settled = c.flights[:0], 0
	clear(c.ids)
	err := c.pass(ctx, b, window, false)
	if err == nil {
		err = c.pass(ctx, b, 1, true)
	}
	if err != nil {
		c.salvage(b)
	}
	if c.inFlight() > 0 || c.nacked {
		c.abandon()
	}
	return err
}

func (c *confirmChannel) inFlight() int { return len(c.flights) - c.settled }

// pass publishes what b has left for suspects, or for the others, and waits for
// the answers.
func (c *confirmChannel) pass(ctx context.Context, b *batch, window int, suspects bool) error {
	blocked := c.conn.blocked.wait()
	for i := b.next(); i >= 0; i = b.after(i) {
		l := &b.letters[i]
		if l.route.suspect != suspects {
			continue
		}
		if l.size > c.maxHeader {
			b.resolve(i, fmt.Errorf("%w: headers of %d bytes, the limit is %d", ErrTooLarge, l.size, c.maxHeader))
			continue
		}
		// A return names the message by its id alone, so an id is in flight once.
		for c.inFlight() >= window || c.ids[l.MessageId] {
			if err := c.settle(ctx, b); err != nil {
				return err
			}
		}
		select {
		case <-blocked:
			return ErrBlocked
		case <-ctx.Done():
			return unavailable(ctx)
		default:
		}
		if err := c.send(i, l); err != nil {
			return err
		}
	}
	for c.inFlight() > 0 {
		if err := c.settle(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// send puts l in flight before it is written: if the broker closes the
// connection over its first bytes, the rest cannot be written.
func (c *confirmChannel) send(i int, l *letter) error {
	if c.settled > 0 && len(c.flights) == cap(c.flights) {
		c.flights = append(c.flights[:0], c.flights[c.settled:]...)
		c.settled = 0
	}
	c.flights = append(c.flights, flight{index: i, sent: time.Now()})
	c.ids[l.MessageId] = true
	confirm, err := c.amqp.PublishWithDeferredConfirm(l.route.exchange, l.route.key, true, false, l.Publishing)
	if err != nil {
		return c.lost()
	}
	c.flights[len(c.flights)-1].confirm = confirm
	return nil
}

// alone returns the index of the one message that is in flight, or -1 if there
// is none or another one with it.
func (c *confirmChannel) alone() int {
	if c.inFlight() != 1 {
		return -1
	}
	return c.flights[c.settled].index
}

// settle waits for the answer to the first message in flight and resolves it.
// An error means that there was none.
func (c *confirmChannel) settle(ctx context.Context, b *batch) error {
	f := c.flights[c.settled]
	if err := c.await(ctx, b, f); err != nil {
		return err
	}
	if !c.answered(b, f) {
		return c.lost()
	}
	c.settled++
	return nil
}

// salvage resolves what was answered out of turn, before the channel is given
// up: it need not be sent again, nor can it be what the channel was closed over.
func (c *confirmChannel) salvage(b *batch) {
	open := c.flights[:0]
	for _, f := range c.flights[c.settled:] {
		if f.confirm == nil || !c.answered(b, f) {
			open = append(open, f)
		}
	}
	c.flights, c.settled = open, 0
}

// answered resolves f if the broker has answered for it, and reports whether it
// has.
func (c *confirmChannel) answered(b *batch, f flight) bool {
	select {
	case <-f.confirm.Done():
	default:
		return false
	}
	acked := f.confirm.Acked()
	if !acked && c.amqp.IsClosed() {
		return false // the library nacks what is open when a channel ends
	}
	l := &b.letters[f.index]
	delete(c.ids, l.MessageId)
	if l.route.suspect {
		l.route.suspect = false
		c.known.accept(l.route.destination)
	}
	c.conn.hear()
	if !acked {
		c.nacked = true
		b.nack(f.index)
		return true
	}
	c.patiences.of(l.route.exchange).confirmed(time.Since(f.sent))
	c.conn.link.confirmedBy(c.conn, l.route.destination)
	// The broker sends a return before its ack, and the library hands both over
	// in that order: it is in the buffer, if there is one.
	c.collectReturns()
	if r, ok := c.returned[l.MessageId]; ok {
		delete(c.returned, l.MessageId)
		b.resolve(f.index, fmt.Errorf("%w: exchange %s: %d %s", ErrUnroutable, r.Exchange, r.ReplyCode, r.ReplyText))
		return true
	}
	b.resolve(f.index, nil)
	return true
}

// await waits until f is answered, or for the patience with the next confirm.
func (c *confirmChannel) await(ctx context.Context, b *batch, f flight) error {
	select {
	case <-f.confirm.Done():
		return nil
	default:
	}
	to := b.letters[f.index].route.destination
	p := c.patiences.of(to.exchange)
	began, timeout := time.Now(), p.current()
	defer c.timer.Stop()
	for waits := 1; ; waits++ {
		c.timer.Reset(timeout)
		select {
		case <-f.confirm.Done():
			return nil
		case <-ctx.Done():
			return unavailable(ctx)
		case <-c.conn.blocked.wait():
			return ErrBlocked
		case <-c.timer.C:
		}
		if waits < othersConfirmed && time.Since(began) < p.most && c.conn.heardSince(began) {
			continue
		}
		return c.unconfirmed(ctx, p, to, began)
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
