package saga

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
)

// ErrUnknownVersion reports an instance whose definition, in its version, is not
// registered.
var ErrUnknownVersion = errors.New("saga: no such definition is registered")

// unknownPause is how long a reply waits that belongs to a version which this
// process does not know, after the first attempt. It gets longer with each, up to
// replyPause: another process is most likely here, and may be down for long.
const unknownPause = 500 * time.Millisecond

// lockedPause is how long a reply waits whose instance somebody else is at work on.
const lockedPause = time.Second

func unknownWait(attempt int) time.Duration {
	return min(time.Duration(attempt)*unknownPause, replyPause)
}

// suspectAttempts is how often the work on a message may come to nothing before only the
// message is taken, and what follows from it is left to a timer. A local step or a
// function of the definition that kills the process, or always fails, then uses up the few tries of
// its instance, which tell a person, and not the many of a message.
const suspectAttempts = 3

// flowOf returns the definition by which i was begun. Its error is an
// [ErrUnknownVersion].
func (o *Orchestrator) flowOf(i *row) (*flow.Flow, error) {
	f, ok := o.flows[versionKey{i.name, i.version}]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: %s, version %d", ErrUnknownVersion, i.name, i.version)
	case f.Hash != i.hash:
		return nil, fmt.Errorf("%w: %s, version %d, with the steps that the instance has: they were changed without raising the version", ErrUnknownVersion, i.name, i.version)
	}
	return f, nil
}

// reply takes a participant's answer.
func (o *Orchestrator) reply(ctx context.Context, tx pgx.Tx, in consumer.Message[reply], emit consumer.Emit) error {
	mark, n, err := flow.Unmark(in.N)
	if err != nil {
		return consumer.Terminal(fmt.Errorf("saga: reply: n: %w", err))
	}
	to, undo, err := flow.ParseReplyN(n)
	if err != nil {
		return consumer.Terminal(fmt.Errorf("saga: reply: n: %w", err))
	}
	answer, err := in.Body.event(to, undo)
	if err != nil {
		return consumer.Terminal(err)
	}
	return o.handle(ctx, tx, &in.Delivery, target{mark, to.Path}, emit, func(r *flow.Run) error {
		if o.opts.NamedReplies { // again, since its version may have been registered since
			if err := checkName(r.Flow, to.Step, namedStep(&in.Delivery)); err != nil {
				return consumer.Terminal(err)
			}
		}
		return r.Reply(ctx, answer)
	})
}

// revoke takes the order to compensate, from the saga around a nested instance.
func (o *Orchestrator) revoke(ctx context.Context, tx pgx.Tx, in consumer.Message[revocation], emit consumer.Emit) error {
	mark, path, err := flow.Unmark(in.N)
	if err == nil {
		_, err = flow.ParseN(path)
	}
	if err != nil {
		return consumer.Terminal(fmt.Errorf("saga: revocation: n: %w", err))
	}
	return o.handle(ctx, tx, &in.Delivery, target{mark, path}, emit, func(r *flow.Run) error {
		return r.Apply(ctx, machine.Event{Kind: machine.Revoke, Reason: clip(in.Body.Reason)})
	})
}

// A target is which of the instances of a key a message is for.
type target struct{ mark, path string }

// handle locks the instance that a message is for, has do move it, and stores it with
// what it sends.
func (o *Orchestrator) handle(ctx context.Context, tx pgx.Tx, in *consumer.Delivery, to target, emit consumer.Emit, do func(*flow.Run) error) error {
	i, err := o.lock(ctx, tx, address{in.Scope, in.Key, flow.Within(in.Incarnation, to.path)})
	if errors.Is(err, errLocked) {
		return consumer.RetryAfter(err, lockedPause)
	}
	if err != nil {
		return terminalIf(err, ErrNoInstance, flow.ErrUnfit)
	}
	if flow.MarkOf(i.Root) != to.mark { // of one that had the key before, or in another service
		o.late(ctx, i, in)
		return nil
	}
	if Topic(i.name) != in.Topic {
		return consumer.Terminal(fmt.Errorf("saga: the instance is one of saga %s, the message came to %s", i.name, in.Topic))
	}
	f, err := o.flowOf(i)
	if err != nil {
		return consumer.RetryAfter(err, unknownWait(in.Attempt))
	}
	i.later = in.Attempt > suspectAttempts
	s := &session{sql: &o.sql, tx: tx, row: i, delivery: in}
	err = o.move(ctx, s, f, do)
	if errors.Is(err, machine.ErrLate) {
		o.late(ctx, i, in)
		return nil
	}
	if err != nil {
		return terminalIf(err, flow.ErrUnfit, machine.ErrRefused)
	}
	emit(s.out...)
	return nil
}

// late notes a message that nobody waits for.
func (o *Orchestrator) late(ctx context.Context, i *row, in *consumer.Delivery) {
	o.counters.late.Add(1)
	o.opts.Logger.DebugContext(ctx, "saga: late reply", "saga", i.name, "key", i.Key, "n", in.N)
}

// terminalIf makes err terminal if it is one of those that no attempt can mend.
func terminalIf(err error, hopeless ...error) error {
	for _, h := range hopeless {
		if errors.Is(err, h) {
			return consumer.Terminal(err)
		}
	}
	return err
}

// move has do move s's instance, which is locked, and stores it.
func (o *Orchestrator) move(ctx context.Context, s *session, f *flow.Flow, do func(*flow.Run) error) error {
	was, phase := s.row.status, s.row.Progress.Phase
	run := s.run(f)
	if err := run.Open(); err != nil {
		return err
	}
	if err := do(run); err != nil {
		return err
	}
	if !phase.Ended() || s.row.Progress.Revoke {
		s.answerParent()
	}
	if err := s.store(ctx, f.Machine); err != nil {
		return err
	}
	o.note(ctx, s.row, was)
	return nil
}

// note counts what has become of an instance, and says that a person is asked for.
// It may be said more than once, if the transaction has to be repeated.
func (o *Orchestrator) note(ctx context.Context, i *row, was Status) {
	if i.status == was {
		return
	}
	switch i.status {
	case StatusCompleted:
		o.counters.completed.Add(1)
	case StatusCompensated:
		o.counters.compensated.Add(1)
	case StatusStuck:
		o.counters.stuck.Add(1)
		o.opts.Logger.WarnContext(ctx, "saga: an instance is stuck", "saga", i.name, "scope", i.Scope, "key", i.Key, "path", i.Path, "reason", i.reason)
	}
}
