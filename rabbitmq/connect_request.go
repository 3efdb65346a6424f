package rabbitmq

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/guard"
)

// maxStuck is how many requests of a connection may wait for an answer longer than
// RequestTimeout. With one more the connection is dropped, which ends them all.
const maxStuck = 8

// unansweredPatience is how long a broker may leave a request without an answer, and send nothing else, before a link
// with several addresses goes to another one. A node of RabbitMQ 4.3 that is cut off from its cluster keeps its
// connections, and answers nothing that needs the other nodes.
const unansweredPatience = 3 * time.Second

// unanswered is the reason for leaving such a broker.
const unanswered departure = "it has not answered a request in time, and sends nothing on this connection"

// An answer is the result of a request.
type answer[T any] struct {
	value T
	err   error
}

// requestOnConn runs f, which asks the broker something over c, and returns its result. If the broker
// does not answer within RequestTimeout, the connection is dropped, because the library would
// wait for ever; the error is an errTimeout. If ctx ends first, f goes on alone and discard
// gets what it returns without an error.
func requestOnConn[T any](ctx context.Context, c *conn, f func() (T, error), discard func(T)) (T, error) {
	return awaitRequest(ctx, c, f, discard, func() bool { return false })
}

// requestOnChannel is [requestOnConn] on a new channel, which an exception closes. If the broker
// does not answer in time but opens another channel, the connection stays: a node of a cluster
// that stands still delays declarations on all nodes for up to a minute, and deliveries go on
// meanwhile. The request then ends with its answer or with the connection.
func requestOnChannel[T any](ctx context.Context, c *conn, f func(*amqp.Channel) (T, error)) (T, error) {
	return awaitRequest(ctx, c, func() (answer T, err error) {
		ch, err := c.amqp.Channel()
		if err != nil {
			return answer, err
		}
		defer ch.Close()
		return f(ch)
	}, nil, c.outlivesRequest)
}

// closeChannel closes ch in the background. If the broker does not answer in time, the connection
// stays or goes as [requestOnChannel] says.
func (c *conn) closeChannel(ch *amqp.Channel) {
	c.work.Go(func() {
		_, _ = awaitRequest(context.Background(), c, func() (any, error) { return nil, ch.Close() }, nil, c.outlivesRequest)
	})
}

// awaitRequest is [requestOnConn]. When RequestTimeout is over, spare says whether the connection stays.
func awaitRequest[T any](ctx context.Context, c *conn, f func() (T, error), discard func(T), spare func() bool) (T, error) {
	done, left := make(chan answer[T]), make(chan struct{})
	report := func(a answer[T]) {
		select {
		case done <- a:
		case <-left:
			if a.err == nil && discard != nil {
				discard(a.value)
			}
		}
	}
	c.work.Go(func() {
		answered := make(chan answer[T], 1)
		c.work.Go(func() {
			a := answer[T]{err: guard.ErrGoexit}
			defer func() { answered <- a }()
			a.err = guard.Call(func() (err error) { // of a TopologyBuilder, or of a GenerateName
				a.value, err = f()
				return err
			})
		})
		began := time.Now()
		timer := time.NewTimer(c.limits.RequestTimeout)
		defer timer.Stop()
		if c.link.mayGoElsewhere(c) {
			var over atomic.Bool
			defer over.Store(true)
			impatient := time.AfterFunc(unansweredPatience, func() { c.link.leaveSilent(c, began, func() bool { return !over.Load() }) })
			defer impatient.Stop()
		}
		select {
		case a := <-answered:
			if a.err != nil && serverException(a.err) == nil && c.left.Load() && time.Since(began) >= unansweredPatience {
				a.err = errTimeout // and not that the socket is closed
			}
			report(a)
		case <-timer.C:
			if !spare() {
				c.dropConnection()
				a := <-answered
				switch {
				case serverException(a.err) != nil:
					a.err = fmt.Errorf("%w: %w", errTimeout, a.err)
				case a.err != nil: // only of the socket that was just closed
					a.err = errTimeout
				}
				report(a)
				return
			}
			report(answer[T]{err: errTimeout})
			a := <-answered
			c.stuck.Add(-1)
			if a.err == nil && discard != nil {
				discard(a.value)
			}
		}
	})
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		close(left)
		var none T
		return none, ctx.Err()
	}
}

// outlivesRequest reports whether c stays although a request on it is stuck, which it counts:
// there are few of these, and the broker still opens a channel.
func (c *conn) outlivesRequest() bool {
	return c.stuck.Add(1) <= maxStuck && c.opensChannel(context.Background())
}
