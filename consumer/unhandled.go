package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/outbox"
)

// An Unhandled is a message of a step that has ended without its handler having
// succeeded.
type Unhandled struct {
	// Delivery is the message, not to be changed, with as much as could be read: a
	// payload may be undecodable. Undo tells action from compensation. Attempt is how
	// often the handler was entered. Nothing can be queued.
	Delivery

	Dead   bool   // it is a dead letter; else a compensation that found nothing to undo
	Reason Reason // why it is a dead letter
	Error  string // the same in words, as it is stored
}

// leaveUnhandled asks j's step what is to be emitted for a message that ends like
// that. Whatever goes wrong there, the message ends.
func (c *Consumer) leaveUnhandled(ctx context.Context, j *job, u Unhandled) {
	j.emits(nil)
	if j.step.Unhandled == nil {
		return
	}
	attempt := u.Attempt
	u.Delivery = j.Delivery
	u.Attempt, u.out = attempt, nil // there is no handler's transaction
	msgs, err := c.answer(j, u)
	if err == nil {
		err = outbox.Validate(msgs...)
	}
	if err != nil {
		c.logJob(ctx, slog.LevelError, "consumer: Unhandled failed, and nothing is emitted", j, slog.Any("error", err))
		return
	}
	j.emits(msgs)
}

// answer returns what the step's Unhandled emits.
func (c *Consumer) answer(j *job, u Unhandled) (msgs []outbox.Message, err error) {
	out := &collector{job: j, log: c.opts.Logger}
	defer out.close()
	err = guard.Call(func() error { j.step.Unhandled(u, out.emit); return nil })
	if panicked := new(guard.PanicError); errors.As(err, &panicked) {
		return nil, fmt.Errorf("it %w\n%s", err, cleantext.Clip(string(panicked.Stack), maxStack))
	}
	return out.msgs, nil
}

// leaveDead is leaveUnhandled for a dead letter.
func (c *Consumer) leaveDead(ctx context.Context, j *job, f failure) {
	text, _ := f.text()
	c.leaveUnhandled(ctx, j, Unhandled{Delivery: Delivery{Attempt: f.attempts}, Dead: true, Reason: f.reason, Error: text})
}

// leaveRejected is leaveDead for a message that is a dead letter because it cannot
// be a job: j is what could be read of it, nil if it belongs to no step. What is
// emitted is added to last.
func (c *Consumer) leaveRejected(ctx context.Context, last *pgx.Batch, j *job, f failure) error {
	if j == nil {
		return nil
	}
	c.leaveDead(ctx, j, f)
	return c.queueEmitted(last, j.emitted)
}

// emits sets what j's transaction puts into the outbox.
func (j *job) emits(msgs []outbox.Message) { j.emitted, j.wakes = msgs, len(msgs) > 0 }
