package saga

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sagarow"
)

const (
	// replyAttempts is how often a reply is tried: for about half a day, because an orchestrator that does not know
	// the version yet may be about to stop.
	replyAttempts = 1000

	// replyPause is the longest wait between two attempts at a reply.
	replyPause = time.Minute

	// unknownPause is how long a reply of a version that this process does not know waits after its first attempt.
	// Each further wait is longer, up to replyPause: another process most likely runs, and may be down for long.
	unknownPause = 500 * time.Millisecond

	// lockedPause is how long a reply waits while another transaction holds the lock of its instance.
	lockedPause = time.Second

	// deferAttempts is how many attempts at a message do all the work that follows from it. Later attempts only take
	// the message, and a timer does the work. A local step may kill its process, or always fail. It then uses up the
	// few tries of its instance, which end with a person, and not the many attempts of a message.
	deferAttempts = 3
)

func unknownWait(attempt int) time.Duration {
	return min(time.Duration(attempt)*unknownPause, replyPause)
}

// A receiver turns the delivery of a reply into an event, and locks the instance that the event is for.
type receiver struct {
	db       pg.Own // for what is read before the transaction
	sql      *statements
	plans    *planSet
	decider  *decider
	lockWait time.Duration
	named    bool // Options.NamedReplies
	counters *counters
	log      *slog.Logger
}

// An incoming event is one with the instance that it is for.
type incoming struct {
	flow.Event
	mark, path string // of the instance
	reply      bool   // the message is a reply, and so names a step
}

// takeReplyMessage handles the reply of a participant, or of a nested saga.
func (r *receiver) takeReplyMessage(ctx context.Context, tx pgx.Tx, in consumer.Message[flow.ReplyBody], emit consumer.Emit) error {
	e, err := parseReplyEvent(in.N, in.Body)
	if err != nil {
		return consumer.Terminal(err)
	}
	return r.takeIncomingEvent(ctx, tx, &in.Delivery, e, emit)
}

func parseReplyEvent(n string, body flow.ReplyBody) (incoming, error) {
	mark, own, err := flow.Unmark(n)
	if err != nil {
		return incoming{}, fmt.Errorf("saga: reply: n: %w", err)
	}
	to, undo, err := flow.ParseReplyN(own)
	if err != nil {
		return incoming{}, fmt.Errorf("saga: reply: n: %w", err)
	}
	event, err := body.ToEvent(to, undo)
	if err != nil {
		return incoming{}, fmt.Errorf("saga: %w", err)
	}
	return incoming{Event: event, mark: mark, path: to.Path, reply: true}, nil
}

// takeRevocation handles the order to compensate, which comes from the saga around a nested instance.
func (r *receiver) takeRevocation(ctx context.Context, tx pgx.Tx, in consumer.Message[flow.Revocation], emit consumer.Emit) error {
	mark, path, err := flow.Unmark(in.N)
	if err == nil {
		_, err = flow.ParseN(path)
	}
	if err != nil {
		return consumer.Terminal(fmt.Errorf("saga: revocation: n: %w", err))
	}
	event := flow.Event{Event: machine.Event{Kind: machine.Revoke, Reason: flow.ClipReason(in.Body.Reason)}}
	return r.takeIncomingEvent(ctx, tx, &in.Delivery, incoming{Event: event, mark: mark, path: path}, emit)
}

// takeIncomingEvent locks the instance of an event, has the event decided and the instance stored, and emits what the
// instance sends. A late event changes nothing. An error is terminal if no attempt can succeed.
func (r *receiver) takeIncomingEvent(ctx context.Context, tx pgx.Tx, in *consumer.Delivery, e incoming, emit consumer.Emit) error {
	row, err := r.lockInstanceRow(ctx, tx, sagarow.Address{Scope: in.Scope, Key: in.Key, Path: flow.Within(in.Incarnation, e.path)})
	if errors.Is(err, errLocked) {
		return consumer.RetryAfter(err, lockedPause)
	}
	if err != nil {
		return makeTerminalIf(err, ErrNoInstance, flow.ErrUnfit)
	}
	if flow.MarkOf(row.Root) != e.mark { // another instance has or had the key, here or in another service
		r.noteLateMessage(ctx, row, in)
		return nil
	}
	if Topic(row.Name) != in.Topic {
		return consumer.Terminal(fmt.Errorf("saga: the instance is one of saga %s, the message came to %s", row.Name, in.Topic))
	}
	f, err := r.plans.flowOfInstance(row)
	if err != nil {
		return consumer.RetryAfter(err, unknownWait(in.Attempt))
	}
	t := newTransition(r.sql, tx, row, f)
	t.delivery, t.run.Deferred = in, in.Attempt > deferAttempts
	err = r.decideIncoming(ctx, t, e)
	if errors.Is(err, machine.ErrLate) {
		r.noteLateMessage(ctx, row, in)
		return nil
	}
	if err != nil {
		return makeTerminalIf(err, flow.ErrUnfit, machine.ErrRefused, errMisnamed)
	}
	emit(t.sent.AllUntraced()...)
	return nil
}

// decideIncoming decides an event. It checks the name in a reply again, because the version of the instance may have
// been registered since [receiver.verifyReply].
func (r *receiver) decideIncoming(ctx context.Context, t *transition, e incoming) error {
	if err := t.run.OpenState(); err != nil {
		return err
	}
	if r.named && e.reply {
		if err := checkReplyName(t.run.Flow, e.Step, stepNamedInKey(t.delivery)); err != nil {
			return err
		}
	}
	return r.decider.decideEvents(ctx, t, e.Event)
}

// noteLateMessage counts a message that no step waits for.
func (r *receiver) noteLateMessage(ctx context.Context, row *sagarow.Row, in *consumer.Delivery) {
	r.counters.late.Add(1)
	r.log.DebugContext(ctx, "saga: late reply", "saga", row.Name, "key", row.Key, "n", in.N)
}

// makeTerminalIf makes err terminal if it is one of hopeless.
func makeTerminalIf(err error, hopeless ...error) error {
	for _, h := range hopeless {
		if errors.Is(err, h) {
			return consumer.Terminal(err)
		}
	}
	return err
}
