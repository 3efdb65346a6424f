package rabbitmq

import (
	"context"
	"fmt"
	"sync"
	"time"
)

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

// current returns how long to wait.
func (p *confirmPatience) current() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.timeout
}

// confirmed learns from a confirm that took so long.
func (p *confirmPatience) confirmed(took time.Duration) {
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

// expired notes a timeout after waiting so long, and reports whether to try another broker:
// each once at first, and then one in each round of timeouts. Overlapping timeouts count once.
func (p *confirmPatience) expired(waited time.Duration, now time.Time) (leave bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts(waited, now) {
		if p.vain++; p.vain%p.brokers == 0 {
			p.timeout = min(2*p.timeout, p.most)
		}
	}
	return p.vain < p.brokers || p.vain%p.brokers == 0
}

// slow notes a timeout after waiting so long for a broker that confirms other messages: this
// destination takes longer. Overlapping timeouts count once.
func (p *confirmPatience) slow(waited time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts(waited, now) {
		p.timeout = min(2*p.timeout, p.most)
	}
}

// counts reports whether a timeout does not overlap the last one that counted. mu is held.
func (p *confirmPatience) counts(waited time.Duration, now time.Time) bool {
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

func (ps *patiences) of(exchange string) *confirmPatience {
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

// unconfirmed says why the oldest message in flight, to a destination, is not confirmed since
// then, and gives the connection up if it is to blame:
//
//   - The broker has answered for others on the connection since: the queue is to blame.
//   - It answers nothing at all: it hangs, or the network is cut.
//   - It opens channels and confirms nothing: all queues in use lack a majority, as on the
//     smaller side of a partition. Another broker may be better off.
func (c *confirmChannel) unconfirmed(ctx context.Context, p *confirmPatience, to destination, since time.Time) error {
	now := time.Now()
	waited := now.Sub(since)
	if c.conn.heardSince(since) {
		p.slow(waited, now)
		return fmt.Errorf("%w: no confirm within %s; the broker answered for other messages on the connection", ErrUnconfirmed, waited.Round(time.Millisecond))
	}
	leave := p.expired(waited, now)
	if !c.conn.opensChannel(ctx) {
		if ctx.Err() != nil {
			return unavailable(ctx)
		}
		c.conn.link.leaveUnconfirmed(c.conn, to, since)
		return fmt.Errorf("%w: no confirm within %s, and no answer to a request", ErrUnavailable, waited.Round(time.Millisecond))
	}
	if c.conn.link.several() && leave {
		c.conn.link.leaveUnconfirmed(c.conn, to, since)
	}
	return fmt.Errorf("%w: no confirm within %s for any message on the connection", ErrUnconfirmed, waited.Round(time.Millisecond))
}

// opensChannel reports whether the broker opens a channel within livenessTimeout. It does
// not drop the connection.
func (c *conn) opensChannel(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, min(livenessTimeout, c.limits.RequestTimeout))
	defer cancel()
	ch, err := call(ctx, c, c.amqp.Channel, c.closeChannel)
	if err == nil {
		c.closeChannel(ch)
	}
	return err == nil
}
