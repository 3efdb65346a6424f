package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/guard"
)

// dialStagger is how long a dial may go on before the next address is dialled beside it:
// a broker that is frozen or cut off accepts connections and does not answer. RFC 8305
// recommends 250 ms for TCP alone; a handshake of AMQP takes some more round trips.
const dialStagger = 500 * time.Millisecond

// A dialled is how the dial of one address has ended.
type dialled struct {
	url  string
	conn *conn
	err  error
}

// dialRound dials the addresses of l, each once, until one has completed its handshake. A
// dial that fails is followed by the next at once, and one that takes long by the next
// beside it. It ends with ctx. The error names each address that was tried.
//
// The dials that are still going on when one has succeeded are cancelled. They belong to
// l.work, for which [link.close] waits: a dial of the user's own may know no context.
func (l *link) dialRound(ctx context.Context) (*conn, error) {
	round, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		urls    = l.addresses.order(l.urls)
		failed  []error
		results = make(chan dialled)
		over    = make(chan struct{}) // closed once results is not read any more
		stagger = time.NewTimer(dialStagger)
	)
	defer stagger.Stop()
	defer close(over)
	for next, underWay := 0, 0; ; { // each turn is the start, a failure or the end of a stagger
		if next < len(urls) && (next == 0 || ctx.Err() == nil) {
			l.dialBeside(round, urls[next], results, over)
			next, underWay = next+1, underWay+1
			stagger.Reset(dialStagger)
		}
		if underWay == 0 {
			return nil, joinRound(failed)
		}
		select {
		case r := <-results:
			underWay--
			if r.err == nil {
				l.warnUnreachable(ctx, failed)
				return r.conn, nil
			}
			if ctx.Err() != nil {
				r.err = context.Cause(ctx)
			}
			failed = append(failed, fmt.Errorf("%s: %w", login(l.at(r.url)), r.err))
		case <-stagger.C:
		}
	}
}

// warnUnreachable logs the addresses that could not be dialled before another one could. Nobody
// would notice otherwise that a service depends on fewer brokers than it names.
func (l *link) warnUnreachable(ctx context.Context, failed []error) {
	for _, err := range failed {
		l.log.WarnContext(ctx, "rabbitmq: a broker cannot be reached, another one is used", "name", l.opts.Name, "error", err)
	}
}

// dialBeside dials url in the background. It drops a connection that comes too late.
func (l *link) dialBeside(ctx context.Context, url string, results chan<- dialled, over <-chan struct{}) {
	l.work.Go(func() {
		var c *conn
		err := guard.Apart(func() (err error) { // of a Dial, or of what shakes hands
			c, err = l.dial(ctx, url)
			return err
		})
		select {
		case results <- dialled{url, c, err}:
		case <-over:
			if err == nil {
				c.drop()
			}
		}
	})
}

// A roundError is why each of several addresses could not be dialled.
type roundError struct{ failed []error }

// joinRound returns the one error as it is, because one address is no round.
func joinRound(failed []error) error {
	if len(failed) == 1 {
		return failed[0]
	}
	return &roundError{failed}
}

func (e *roundError) Error() string {
	texts := make([]string, len(e.failed))
	for i, err := range e.failed {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (e *roundError) Unwrap() []error { return e.failed }

// addressErrors returns the error of each address if err is that of a round, else err
// alone.
func addressErrors(err error) []error {
	var round *roundError
	if errors.As(err, &round) {
		return round.failed
	}
	return []error{err}
}
