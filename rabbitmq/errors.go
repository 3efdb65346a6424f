package rabbitmq

import (
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/outbox"
)

// The refusals. Each is an [outbox.ErrRefused]: the broker, or a check on its
// behalf, will not have this message as things are, and nothing was stored.
var (
	// ErrUnroutable reports that the exchange has no queue for the message.
	ErrUnroutable = fmt.Errorf("rabbitmq: message reached no queue: %w", outbox.ErrRefused)
	// ErrTooLarge reports a payload, header or name over a limit. The message
	// was not sent, since it would have closed a connection: ours or a consumer's.
	ErrTooLarge = fmt.Errorf("rabbitmq: message over a size limit: %w", outbox.ErrRefused)
	// ErrRejected reports that the broker closes the channel or the connection because of this
	// message or of the declaration of its exchange. Or the message cannot be expressed in AMQP.
	ErrRejected = fmt.Errorf("rabbitmq: message rejected: %w", outbox.ErrRefused)
)

// The queue's fault. Each is an [outbox.ErrDeferred]: the broker is there, and a queue of the
// topic takes no messages at present. The message is not to blame.
var (
	// ErrNacked reports that the broker nacked the message on two channels. A full queue with
	// overflow reject-publish does so, and a quorum queue without a leader. Other queues of
	// the topic may have the message.
	ErrNacked = fmt.Errorf("rabbitmq: message nacked: %w", outbox.ErrDeferred)
	// ErrUnconfirmed reports that the broker answers requests and did not confirm the message
	// in time, as with a quorum queue without a majority. The message may be stored.
	// ConfirmTimeout is the limit.
	ErrUnconfirmed = fmt.Errorf("rabbitmq: message not confirmed: %w", outbox.ErrDeferred)
)

var (
	// ErrUnavailable reports that the broker is away, or went away before it
	// answered: the outcome is unknown.
	ErrUnavailable = errors.New("rabbitmq: broker unavailable, outcome unknown")
	// ErrBlocked reports that the broker takes no messages because of a memory
	// or disk alarm. Messages that were already sent may still be stored.
	ErrBlocked = errors.New("rabbitmq: broker is blocked by an alarm")
	// ErrClosed reports a use after Close.
	ErrClosed = errors.New("rabbitmq: closed")
	// ErrConfig reports settings that cannot work.
	ErrConfig = errors.New("rabbitmq: invalid configuration")
)

// hardFaults are the exceptions with which the broker closes the connection over
// a frame that it received on it. The others mean that the broker goes away, or that
// somebody closed the connection. An internal error may be either: see [closedOver].
var hardFaults = []int{amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.NotImplemented, amqp.InternalError}

// serverException returns the exception with which the broker closed a channel
// (Recover is true), or the connection, over something that was sent. It returns
// nil if the connection went for another reason, or if the broker did not say
// why.
func serverException(err error) *amqp.Error {
	var e *amqp.Error
	if errors.As(err, &e) && e.Server && (e.Recover || slices.Contains(hardFaults, e.Code)) {
		return e
	}
	return nil
}

// closedOver says why the broker closed a connection with e, which is of hardFaults. A node that stops, or has lost a
// part of its cluster, answers with an internal error to whatever is under way. It is the broker's own trouble, unless a
// message that is alone on a connection meets it again.
func closedOver(e *amqp.Error) string {
	if e.Code == amqp.InternalError {
		return "rabbitmq: the broker closed the connection with an internal error, as a node does that stops; a batch goes on on a connection of its own"
	}
	return "rabbitmq: the broker closed the connection over something that was sent; a batch goes on on a connection of its own"
}

// loginTries is after how many connections in a row, cut where the password has just
// been sent, it counts as wrong. A broker that is not asked to say so cuts the
// connection over a wrong one; but so may a network, once or twice.
const loginTries = 3

// isCutAtLogin reports whether the broker hung up on the password without a word. In a round,
// one such broker is enough if all others refuse for good: a network may have cut it off.
func isCutAtLogin(err error) bool {
	return isPermanent(err) && slices.ContainsFunc(addressErrors(err), func(err error) bool {
		var e *amqp.Error
		return errors.As(err, &e) && !e.Server && e.Code == amqp.AccessRefused
	})
}

// hasCode reports whether err is the broker's exception with this code.
func hasCode(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}

// isPermanent reports whether no retry can mend err: the broker knows us and
// refuses, or the queue exists with other arguments. Of several brokers each has to
// refuse, because another one may come back. See [isCutAtLogin].
func isPermanent(err error) bool {
	return !slices.ContainsFunc(addressErrors(err), func(err error) bool { return !refusesForGood(err) })
}

func refusesForGood(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return errors.Is(err, ErrConfig)
	}
	return e.Code == amqp.AccessRefused || e.Code == amqp.PreconditionFailed || e.Code == amqp.NotAllowed // such as a virtual host
}
