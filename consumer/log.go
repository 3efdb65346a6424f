package consumer

import (
	"context"
	"log/slog"
)

// logJob writes a line about j. Every such line names the message in the same
// words; the key, which is the caller's, and the payload are in none.
func (c *Consumer) logJob(ctx context.Context, level slog.Level, text string, j *job, more ...slog.Attr) {
	ctx = j.watch.context(ctx)
	if !c.opts.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("step", j.Step), slog.String("kind", string(j.kind)), slog.String("topic", j.Topic),
		slog.String("message_id", j.ID), slog.String("correlation_id", j.CorrelationID),
	}
	if j.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", j.Attempt))
	}
	c.opts.Logger.LogAttrs(ctx, level, text, append(attrs, more...)...)
}

func (c *Consumer) logFailure(ctx context.Context, j *job, err error) {
	c.logJob(ctx, slog.LevelWarn, "consumer: handler failed", j, slog.Any("error", err))
}

func (c *Consumer) logTombstone(ctx context.Context, j *job) {
	c.logJob(ctx, slog.LevelInfo, "consumer: compensation before its action, which will not run any more", j)
}

// logDead writes a line about a dead letter of a step.
func (c *Consumer) logDead(ctx context.Context, j *job, f failure) {
	c.logJob(ctx, slog.LevelError, "consumer: dead letter", j,
		slog.String("reason", string(f.reason)), slog.Int("attempts", f.attempts), slog.Any("error", f.err))
}

// logRejected writes a line about one of no step.
func (c *Consumer) logRejected(ctx context.Context, topic, messageID string, f failure) {
	c.opts.Logger.LogAttrs(ctx, slog.LevelError, "consumer: dead letter", slog.String("topic", topic),
		slog.String("message_id", messageID), slog.String("reason", string(f.reason)), slog.Any("error", f.err))
}
