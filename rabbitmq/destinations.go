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

	// maxDestinations bounds what is remembered, of each kind. Over it all is
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

// destinations is what a Publisher knows, over all its channels, of where it
// publishes to.
type destinations struct {
	mu       sync.Mutex
	conn     *conn           // on which the exchanges were declared
	declared map[string]bool // exchanges
	refused  map[destination]refusal
}

// A refusal is what the broker said of a destination, and until when that is
// not questioned.
type refusal struct {
	err       error
	until     time.Time
	published bool // a message to it ended a channel, so that the next is sent by itself
}

// standing returns the refusal in force for d, and if there is none whether the
// next message to d may end the channel that it is sent on.
func (d *destinations) standing(at destination) (refused error, suspect bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.refused[at]
	switch {
	case !ok:
		return nil, false
	case time.Now().Before(r.until):
		return r.err, false
	case !r.published: // declaring it again disturbs nobody
		delete(d.refused, at)
	}
	return nil, r.published
}

func (d *destinations) refuse(at destination, err error, published bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused == nil || len(d.refused) >= maxDestinations {
		d.refused = make(map[destination]refusal)
	}
	d.refused[at] = refusal{err, time.Now().Add(refusalMemory), published}
}

// accept notes that the broker has answered for a message to a suspect.
func (d *destinations) accept(at destination) {
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

// forget makes every exchange be declared again: the broker misses one.
func (d *destinations) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn, d.declared = nil, nil
}

// declare declares the exchanges of b that c has not seen yet, one after the
// other on a channel of their own: an exception is this exchange's fault, and
// ends no channel on which messages are under way. Messages to an exchange that
// the broker refuses are refused, and the others go on without them. alone says
// that nobody else uses c.
func (p *Publisher) declare(ctx context.Context, c *conn, b *batch, alone bool) error {
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
			if ch, err = call(ctx, c, c.amqp.Channel, c.closeChannel); err != nil {
				return unanswered(ctx, "open channel", err)
			}
		}
		_, err = call(ctx, c, func() (any, error) { return nil, p.cfg.TopologyBuilder.ExchangeDeclare(ch, r.exchange, p.cfg) }, nil)
		if err == nil {
			p.destinations.setDeclared(c, r.exchange)
			continue
		}
		e := exception(err)
		if e == nil || !e.Recover && !(alone && e.Code == amqp.CommandInvalid) {
			return unanswered(ctx, "declare exchange "+r.exchange, err)
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
			p.destinations.refuse(r.destination, err, false)
			b.refuse(r.destination, err)
		}
	}
}
