package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// refusalMemory is for how long the broker is not asked again for a
	// destination that it refused: each time costs a channel.
	refusalMemory = time.Second

	// maxDestinations is the most destinations of each kind that are remembered. When there are more, all are
	// forgotten, which costs a declaration of each exchange in use.
	maxDestinations = 4096
)

// errAgain reports that the connection is gone, that the culprits' messages are
// resolved, and that the others can go on.
var errAgain = errors.New("declaration refused together with the connection")

// A destination is where messages are published to.
type destination struct{ exchange, key string }

// String names it in a log.
func (d destination) String() string {
	if d.key == "" {
		return fmt.Sprintf("exchange %q", d.exchange)
	}
	return fmt.Sprintf("exchange %q with routing key %q", d.exchange, d.key)
}

// destinations is the knowledge of a Publisher about its destinations, from all its channels.
type destinations struct {
	mu       sync.Mutex
	conn     *conn           // on which the exchanges were declared
	declared map[string]bool // exchanges
	refused  map[destination]refusal
}

// A refusal is the error of the broker for a destination, and the time until which it is taken for true.
type refusal struct {
	err       error
	until     time.Time
	published bool // a message to it ended a channel, so that the next is sent alone
}

// standingOf returns the refusal in force for d. If there is none, it returns whether the next
// message to d may end the channel that it is sent on.
func (d *destinations) standingOf(at destination) (refused error, suspect bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.refused[at]
	switch {
	case !ok:
		return nil, false
	case time.Now().Before(r.until):
		return r.err, false
	case !r.published: // declaring it again disturbs no other publisher
		delete(d.refused, at)
	}
	return nil, r.published
}

func (d *destinations) noteRefusal(at destination, err error, published bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused == nil || len(d.refused) >= maxDestinations {
		d.refused = make(map[destination]refusal)
	}
	d.refused[at] = refusal{err, time.Now().Add(refusalMemory), published}
}

// noteAccepted notes that the broker has answered for a message to a suspect.
func (d *destinations) noteAccepted(at destination) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.refused, at)
}

func (d *destinations) isDeclared(c *conn, exchange string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conn == c && d.declared[exchange]
}

func (d *destinations) setDeclared(c *conn, exchange string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != c || len(d.declared) >= maxDestinations {
		d.conn, d.declared = c, make(map[string]bool)
	}
	d.declared[exchange] = true
}

// forgetDeclared makes every exchange be declared again: the broker misses one.
func (d *destinations) forgetDeclared() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn, d.declared = nil, nil
}

// declareExchanges declares the exchanges of b that c has not seen yet, one after the other. It uses a
// separate channel: an exception ends that channel only, and belongs to one exchange. If the broker refuses
// an exchange, its messages are refused, and the others go on without them. alone says that no other
// goroutine uses c.
func (p *Publisher) declareExchanges(ctx context.Context, c *conn, b *batch, alone bool) error {
	var ch *amqp.Channel
	defer func() {
		if ch != nil {
			c.closeChannel(ch)
		}
	}()
	for _, r := range b.routes {
		if r.refused != nil || r.exchange == amqp.DefaultExchange || len(r.exchange) > maxShortString || p.destinations.isDeclared(c, r.exchange) {
			continue
		}
		var err error
		if ch == nil {
			if ch, err = requestOnConn(ctx, c, c.amqp.Channel, c.closeChannel); err != nil {
				return explainUnanswered(ctx, "open channel", err)
			}
		}
		_, err = requestOnConn(ctx, c, func() (any, error) { return nil, p.cfg.TopologyBuilder.ExchangeDeclare(ch, r.exchange, p.cfg) }, nil)
		if err == nil {
			p.destinations.setDeclared(c, r.exchange)
			continue
		}
		e := serverException(err)
		if e == nil || !e.Recover && !(alone && e.Code == amqp.CommandInvalid) {
			return explainUnanswered(ctx, "declare exchange "+r.exchange, err)
		}
		p.refuseExchange(b, r.exchange, fmt.Errorf("%w: declare exchange %s: %w", ErrRejected, r.exchange, e))
		ch = nil // it went with the exception
		if !e.Recover {
			return errAgain
		}
	}
	return nil
}

// refuseExchange refuses what b has for exchange, and remembers it.
func (p *Publisher) refuseExchange(b *batch, exchange string, err error) {
	for _, r := range b.routes {
		if r.exchange == exchange {
			r.refused = err
			p.destinations.noteRefusal(r.destination, err, false)
			b.refuseDestination(r.destination, err)
		}
	}
}

// deathsToRefuse is how many connections in a row must die over a message that is alone on them
// before it is refused. A broker in trouble closes a connection with the same words.
const deathsToRefuse = 2

// deliverBatch publishes what b has left on ch, or on a new channel of l, and
// returns the channel then in use. An error is for all that b has left after
// it: the outcome is unknown. If it is an exception that closed the shared
// connection, its culprit need not be in b: see isolateCulprit.
func (p *Publisher) deliverBatch(ctx context.Context, l *link, ch *confirmChannel, b *batch) (*confirmChannel, error) {
	window, declaredAgain, alone := p.opts.Window, false, l != p.link
	culprit, deaths := -1, 0
	for b.nextUnresolved() >= 0 {
		var err error
		if ch, err = p.prepareChannel(ctx, l, ch, b); err == nil {
			err = ch.publishBatch(ctx, b, window)
		}
		e := serverException(err)
		switch {
		case err == nil, errors.Is(err, errAgain):
			continue
		case e == nil, !e.Recover && !alone:
			return ch, err
		case e.Code == amqp.NotFound && !declaredAgain:
			declaredAgain = true
			p.destinations.forgetDeclared()
			continue
		}
		i := -1
		if ch != nil {
			i = ch.loneMessage()
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
			p.blameMessage(b, i, e)
		}
	}
	return ch, nil
}

// blameMessage refuses message i, which the broker ended the channel over. Where the
// exception is about the exchange, so is everything else that goes there.
func (p *Publisher) blameMessage(b *batch, i int, e *amqp.Error) {
	switch to := b.letters[i].route.destination; {
	case !e.Recover: // its text can quote the payload
		b.resolveMessage(i, fmt.Errorf("%w: the broker closes the connection over it: exception %d", ErrRejected, e.Code))
	case e.Code == amqp.AccessRefused, e.Code == amqp.NotFound:
		err := fmt.Errorf("%w: exchange %s: %w", ErrRejected, to.exchange, e)
		p.destinations.noteRefusal(to, err, true)
		b.refuseDestination(to, err)
	default:
		b.resolveMessage(i, fmt.Errorf("%w: %w", ErrRejected, e))
	}
}

// isolateCulprit publishes the rest of b on a separate connection, because the broker closed the
// shared one over something that was sent on it. There b can meet an exception only for its own
// messages, and no other batch suffers from them. One batch does so at a time.
func (p *Publisher) isolateCulprit(ctx context.Context, b *batch, e *amqp.Error) error {
	ctx, cancel := p.link.boundDial(ctx)
	defer cancel()
	select {
	case p.isolating <- struct{}{}:
		defer func() { <-p.isolating }()
	case <-ctx.Done():
		return unavailableError(ctx)
	}
	p.opts.Logger.WarnContext(ctx, closedOver(e), "name", p.opts.Connection.Name, "exception", e.Code)
	own := newLink(p.cfg, p.opts.Connection, p.opts.Logger)
	defer own.closeLink()
	_, err := p.deliverBatch(ctx, own, nil, b)
	if err != nil {
		own.cutConnection() // the broker is gone, or there is no time for a close
	}
	return err
}
