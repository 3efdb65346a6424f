package consumer

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/sagamill/sagamill/internal/cleantext"
)

// maxLogged is how many bytes of a foreign value a log line has.
const maxLogged = 256

// foreign is text that somebody else has written, such as a message's id. In a
// log it is quoted if it could pass for something else: log handlers differ in
// what they escape, and one line must not look like two.
type foreign string

// LogValue implements [slog.LogValuer].
func (f foreign) LogValue() slog.Value {
	return slog.StringValue(quoted(string(f), maxLogged))
}

// quoted returns s if it is printable, or else its Go literal; of what is longer
// than limit only the beginning.
func quoted(s string, limit int) string {
	if len(s) <= limit && cleantext.Printable(s) {
		return s
	}
	if len(s) > limit {
		s = s[:limit]
	}
	return strconv.QuoteToASCII(s)
}

// errorAttr is err as an attribute: as it is, for handlers that look into it,
// unless its text is nothing for a log line.
func errorAttr(err error) slog.Attr {
	if err == nil {
		return slog.Attr{}
	}
	text := err.Error()
	if safe := quoted(text, maxErrorText); safe != text {
		return slog.String("error", safe)
	}
	return slog.Any("error", err)
}

// logJob writes a line about j. Every such line names the message in the same
// words; the key, which is the caller's, and the payload are in none.
func (c *Consumer) logJob(ctx context.Context, level slog.Level, text string, j *job, more ...slog.Attr) {
	ctx = j.watch.context(ctx)
	if !c.opts.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("step", j.Step), slog.String("kind", string(j.kind)), slog.String("topic", j.Topic),
		slog.Any("message_id", foreign(j.ID)), slog.Any("correlation_id", foreign(j.CorrelationID)),
	}
	if j.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", j.Attempt))
	}
	c.opts.Logger.LogAttrs(ctx, level, text, append(attrs, more...)...)
}

func (c *Consumer) logFailure(ctx context.Context, j *job, err error) {
	c.logJob(ctx, slog.LevelWarn, "consumer: handler failed", j, errorAttr(err))
}

func (c *Consumer) logTombstone(ctx context.Context, j *job) {
	c.logJob(ctx, slog.LevelInfo, "consumer: compensation before its action, which will not run any more", j)
}

// logDead writes a line about a dead letter of a step.
func (c *Consumer) logDead(ctx context.Context, j *job, f failure) {
	c.logJob(ctx, slog.LevelError, "consumer: dead letter", j,
		slog.String("reason", string(f.reason)), slog.Int("attempts", f.attempts), errorAttr(f.err))
}

// logRejected writes a line about one of no step.
func (c *Consumer) logRejected(ctx context.Context, topic, messageID string, f failure) {
	c.opts.Logger.LogAttrs(ctx, slog.LevelError, "consumer: dead letter", slog.String("topic", topic),
		slog.Any("message_id", foreign(messageID)), slog.String("reason", string(f.reason)), errorAttr(f.err))
}
