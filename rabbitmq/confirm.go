package rabbitmq

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A confirmChannel is a channel in confirm mode, used by one goroutine at a
// time. Between uses nothing is in flight on it, or it is abandoned.
//
// A channel that was nacked once is abandoned as well. RabbitMQ's client of quorum queues
// (rabbit_fifo_client in 3.10) keeps its first knowledge of a queue for the life of the channel.
// If its first publish to a queue comes between the death of the leader and the election, every
// later one is nacked. That lasts until the dead node is back. A new channel is not affected.
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
	holding   bool // letters back

	// The messages in flight: sent, or being sent, and not yet answered.
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

// newPlaces returns the places of a connection; a channel for messages takes one. Of the channels that were negotiated,
// two are left out: one to look whether the connection still opens any, and the last number, which the client never
// gives out. Half of the others are places, because each batch may need a second channel, to declare its exchange.
func (l *link) newPlaces(connection *amqp.Connection) chan struct{} {
	allowed := max(1, (int(connection.Config.ChannelMax)-2)/2)
	if allowed < l.channels && l.warnedOf.Swap(int64(allowed)) != int64(allowed) {
		l.log.WarnContext(l.life, "rabbitmq: the broker's channel_max allows fewer channels than PublisherOptions.Channels; further batches wait",
			"name", l.opts.Name, "channel_max", connection.Config.ChannelMax, "used", allowed, "wanted", l.channels)
	}
	return make(chan struct{}, allowed)
}

// openConfirmChannel opens a channel. The caller has taken a place of c for it, which is free again when the channel is
// closed, or was not opened.
func openConfirmChannel(ctx context.Context, c *conn, p *Publisher) (*confirmChannel, error) {
	open := func() (*amqp.Channel, error) {
		ch, err := c.amqp.Channel()
		if err != nil {
			return nil, err
		}
		return ch, ch.Confirm(false)
	}
	ch, err := requestOnConn(ctx, c, open, c.closeChannel)
	if err != nil {
		<-c.places
		return nil, explainUnanswered(ctx, "open channel", err)
	}
	ended := ch.NotifyClose(make(chan *amqp.Error, 1))
	c.work.Go(func() {
		for range ended {
		}
		<-c.places
	})
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
		return nil, explainUnanswered(ctx, "open channel", amqp.ErrClosed)
	}
	p.signals.opened.Send(true)
	return opened, nil
}

// explainUnanswered returns the error of a request: the reason why ctx ended, if that
// is why.
func explainUnanswered(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return unavailableError(ctx)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}

// abandonChannel gives the channel up: answers that still come belong to messages
// whose results are out.
func (c *confirmChannel) abandonChannel() {
	c.abandoned = true
	c.conn.closeChannel(c.amqp)
}

// publishBatch sends the open messages of b, window messages at most ahead of their confirms. Messages to
// destinations in good standing come first, then messages to suspects, one by one. After an error it resolves
// no message in flight and abandons the channel. If the broker closed the channel by an exception, the error
// holds that.
func (c *confirmChannel) publishBatch(ctx context.Context, b *batch, window int) error {
	c.flights, c.settled = c.flights[:0], 0
	clear(c.ids)
	err := c.publishPass(ctx, b, window, false)
	if err == nil {
		err = c.publishPass(ctx, b, 1, true)
	}
	if err != nil {
		c.salvageAnswers(b)
	}
	if c.countInFlight() > 0 || c.nacked {
		c.abandonChannel()
	}
	return err
}

func (c *confirmChannel) countInFlight() int { return len(c.flights) - c.settled }

// publishPass publishes what b has left for suspects, or for the others, and waits for
// the answers.
func (c *confirmChannel) publishPass(ctx context.Context, b *batch, window int, suspects bool) error {
	err := c.sendLetters(ctx, b, window, suspects)
	c.releaseWrites()
	for err == nil && c.countInFlight() > 0 {
		err = c.settleFlights(ctx, b)
	}
	return err
}

// sendLetters sends the letters of a pass. It waits for answers where the window is full. The last letters may be
// held back.
func (c *confirmChannel) sendLetters(ctx context.Context, b *batch, window int, suspects bool) error {
	blocked := c.conn.blocked.waitChannel()
	for i := b.nextUnresolved(); i >= 0; i = b.nextAfter(i) {
		l := &b.letters[i]
		if l.route.suspect != suspects {
			continue
		}
		if l.size > c.maxHeader {
			b.resolveMessage(i, fmt.Errorf("%w: headers of %d bytes, the limit is %d", ErrTooLarge, l.size, c.maxHeader))
			continue
		}
		// A return names the message by its id alone, so an id is in flight once.
		for c.countInFlight() >= window || c.ids[l.MessageId] {
			if err := c.settleFlights(ctx, b); err != nil {
				return err
			}
		}
		select {
		case <-blocked:
			return ErrBlocked
		case <-ctx.Done():
			return unavailableError(ctx)
		default:
		}
		if window > 1 && len(b.letters) > 1 {
			c.holdWrites()
		}
		if err := c.sendLetter(i, l); err != nil {
			return err
		}
	}
	return nil
}

// holdWrites holds letters back until releaseWrites, at the latest until an answer is waited for. So the letters of
// a batch are written together.
func (c *confirmChannel) holdWrites() {
	if !c.holding {
		c.holding = true
		c.conn.socket.holdWrites()
	}
}

func (c *confirmChannel) releaseWrites() {
	if c.holding {
		c.holding = false
		c.conn.socket.releaseWrites()
	}
}

// sendLetter puts l in flight before it is written: if the broker closes the
// connection over its first bytes, the rest cannot be written.
func (c *confirmChannel) sendLetter(i int, l *letter) error {
	if c.settled > 0 && len(c.flights) == cap(c.flights) {
		c.flights = append(c.flights[:0], c.flights[c.settled:]...)
		c.settled = 0
	}
	c.flights = append(c.flights, flight{index: i, sent: time.Now()})
	c.ids[l.MessageId] = true
	confirm, err := c.amqp.PublishWithDeferredConfirm(l.route.exchange, l.route.key, true, false, l.Publishing)
	if err != nil {
		return c.lossError()
	}
	c.flights[len(c.flights)-1].confirm = confirm
	return nil
}

// loneMessage returns the index of the one message that is in flight, or -1 if there
// is none or another one with it.
func (c *confirmChannel) loneMessage() int {
	if c.countInFlight() != 1 {
		return -1
	}
	return c.flights[c.settled].index
}

// settleFlights waits for the answer to the first message in flight and resolves it.
// An error means that there was none.
func (c *confirmChannel) settleFlights(ctx context.Context, b *batch) error {
	c.releaseWrites()
	f := c.flights[c.settled]
	if err := c.awaitAnswer(ctx, b, f); err != nil {
		return err
	}
	if !c.takeAnswer(b, f) {
		return c.lossError()
	}
	c.settled++
	return nil
}

// salvageAnswers resolves messages that were answered out of turn, before the channel is given up. They need
// not be sent again, and did not make the broker close the channel.
func (c *confirmChannel) salvageAnswers(b *batch) {
	open := c.flights[:0]
	for _, f := range c.flights[c.settled:] {
		if f.confirm == nil || !c.takeAnswer(b, f) {
			open = append(open, f)
		}
	}
	c.flights, c.settled = open, 0
}

// takeAnswer resolves f if the broker has answered for it, and reports whether it
// has.
func (c *confirmChannel) takeAnswer(b *batch, f flight) bool {
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
		c.known.noteAccepted(l.route.destination)
	}
	c.conn.noteHeard()
	if !acked {
		c.nacked = true
		b.nackMessage(f.index)
		return true
	}
	c.patiences.patienceOf(l.route.exchange).noteConfirmed(time.Since(f.sent))
	c.conn.link.confirmedBy(c.conn, l.route.destination)
	// The broker sends a return before its ack, and the library hands both over
	// in that order: it is in the buffer, if there is one.
	c.collectReturns()
	if r, ok := c.returned[l.MessageId]; ok {
		delete(c.returned, l.MessageId)
		b.resolveMessage(f.index, fmt.Errorf("%w: exchange %s: %d %s", ErrUnroutable, r.Exchange, r.ReplyCode, r.ReplyText))
		return true
	}
	b.resolveMessage(f.index, nil)
	return true
}

// awaitAnswer waits until f is answered, or for the patience with the next confirm.
func (c *confirmChannel) awaitAnswer(ctx context.Context, b *batch, f flight) error {
	select {
	case <-f.confirm.Done():
		return nil
	default:
	}
	to := b.letters[f.index].route.destination
	p := c.patiences.patienceOf(to.exchange)
	began, timeout := time.Now(), p.currentWait()
	defer c.timer.Stop()
	for waits := 1; ; waits++ {
		c.timer.Reset(timeout)
		select {
		case <-f.confirm.Done():
			return nil
		case <-ctx.Done():
			return unavailableError(ctx)
		case <-c.conn.blocked.waitChannel():
			return ErrBlocked
		case <-c.timer.C:
		}
		if waits < othersConfirmed && time.Since(began) < p.most && c.conn.heardSince(began) {
			continue
		}
		return c.explainUnconfirmed(ctx, p, to, began)
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

// lossError says why the channel is closed.
func (c *confirmChannel) lossError() error {
	select {
	case e := <-c.closes:
		if e != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, e)
		}
	case <-time.After(c.conn.limits.RequestTimeout):
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, amqp.ErrClosed)
}

const (
	// minConfirmTimeout is the shortest adaptive timeout, and firstConfirmTimeout the first.
	minConfirmTimeout   = time.Second
	firstConfirmTimeout = 2 * time.Second

	// othersConfirmed is how many waits for a confirm may pass while others are confirmed on
	// the connection: a busy queue is slower than others.
	othersConfirmed = 4

	// livenessTimeout is how long a broker that does not confirm may take to open a channel
	// before its connection is dropped.
	livenessTimeout = time.Second
)

// A confirmPatience is how long to wait for the next confirm. It follows how long confirms
// take, as TCP's retransmission timer follows the round trip (RFC 6298): their smoothed
// mean and four times the deviation from it. It doubles after a timeout at each broker.
type confirmPatience struct {
	least, most time.Duration
	brokers     int

	mu              sync.Mutex
	mean, deviation time.Duration // mean is 0 before the first confirm
	timeout         time.Duration
	vain            int       // waits in a row
	expiredAt       time.Time // when a wait that counts ended last
}

func newConfirmPatience(most time.Duration, brokers int) *confirmPatience {
	return &confirmPatience{least: min(minConfirmTimeout, most), most: most, brokers: brokers, timeout: min(firstConfirmTimeout, most)}
}

// currentWait returns how long to wait.
func (p *confirmPatience) currentWait() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.timeout
}

// noteConfirmed learns from a confirm that took so long.
func (p *confirmPatience) noteConfirmed(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mean == 0 {
		p.mean, p.deviation = took, took/2
	} else {
		p.deviation += ((took - p.mean).Abs() - p.deviation) / 4
		p.mean += (took - p.mean) / 8
	}
	p.timeout, p.vain = min(max(p.mean+4*p.deviation, p.least), p.most), 0
}

// noteExpired notes a timeout after waiting so long, and reports whether to try another broker:
// each once at first, and then one in each round of timeouts. Overlapping timeouts count once.
func (p *confirmPatience) noteExpired(waited time.Duration, now time.Time) (leave bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCounted(waited, now) {
		if p.vain++; p.vain%p.brokers == 0 {
			p.timeout = min(2*p.timeout, p.most)
		}
	}
	return p.vain < p.brokers || p.vain%p.brokers == 0
}

// noteSlow notes a timeout after waiting so long for a broker that confirms other messages: this
// destination takes longer. Overlapping timeouts count once.
func (p *confirmPatience) noteSlow(waited time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCounted(waited, now) {
		p.timeout = min(2*p.timeout, p.most)
	}
}

// isCounted reports whether a timeout does not overlap the last one that counted. mu is held.
func (p *confirmPatience) isCounted(waited time.Duration, now time.Time) bool {
	if now.Sub(p.expiredAt) < waited/2 {
		return false
	}
	p.expiredAt = now
	return true
}

// patiences has one for each exchange: queues differ in how long they take.
type patiences struct {
	most    time.Duration
	brokers int

	mu         sync.Mutex
	byExchange map[string]*confirmPatience
}

func (ps *patiences) patienceOf(exchange string) *confirmPatience {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byExchange[exchange]
	if p == nil {
		if ps.byExchange == nil || len(ps.byExchange) >= maxDestinations {
			ps.byExchange = make(map[string]*confirmPatience)
		}
		p = newConfirmPatience(ps.most, ps.brokers)
		ps.byExchange[exchange] = p
	}
	return p
}

// explainUnconfirmed tells why the oldest message in flight, to a destination, has not been
// confirmed since then. If the connection is to blame, it gives that up.
//
//   - The broker has answered for others on the connection since: the queue is to blame.
//   - It answers nothing at all: it hangs, or the network is cut.
//   - It opens channels and confirms nothing: all queues in use lack a majority, as on the
//     smaller side of a partition. Another broker may be better off.
func (c *confirmChannel) explainUnconfirmed(ctx context.Context, p *confirmPatience, to destination, since time.Time) error {
	now := time.Now()
	waited := now.Sub(since)
	if c.conn.heardSince(since) {
		p.noteSlow(waited, now)
		return fmt.Errorf("%w: no confirm within %s; the broker answered for other messages on the connection", ErrUnconfirmed, waited.Round(time.Millisecond))
	}
	leave := p.noteExpired(waited, now)
	if !c.conn.opensChannel(ctx) {
		if ctx.Err() != nil {
			return unavailableError(ctx)
		}
		c.conn.link.leaveUnconfirmed(c.conn, to, since)
		return fmt.Errorf("%w: no confirm within %s, and no answer to a request", ErrUnavailable, waited.Round(time.Millisecond))
	}
	if c.conn.link.hasSeveral() && leave {
		c.conn.link.leaveUnconfirmed(c.conn, to, since)
	}
	return fmt.Errorf("%w: no confirm within %s for any message on the connection", ErrUnconfirmed, waited.Round(time.Millisecond))
}

// opensChannel reports whether the broker opens a channel within livenessTimeout. It does
// not drop the connection.
func (c *conn) opensChannel(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, min(livenessTimeout, c.limits.RequestTimeout))
	defer cancel()
	ch, err := requestOnConn(ctx, c, c.amqp.Channel, c.closeChannel)
	if err == nil {
		c.closeChannel(ch)
	}
	return err == nil
}
