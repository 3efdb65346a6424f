package guard

import (
	"context"
	"log/slog"
)

// Logger returns a Logger that writes to log. A panic in log's handler loses the line that
// was being written, and has no other effect.
func Logger(log *slog.Logger) *slog.Logger {
	if _, ok := log.Handler().(handler); ok {
		return log
	}
	return slog.New(handler{log.Handler()})
}

type handler struct{ to slog.Handler }

// Enabled implements [slog.Handler].
func (h handler) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	err := Call(func() error { enabled = h.to.Enabled(ctx, level); return nil })
	return err == nil && enabled
}

// Handle implements [slog.Handler].
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	return Call(func() error { return h.to.Handle(ctx, r) })
}

// WithAttrs implements [slog.Handler].
func (h handler) WithAttrs(attrs []slog.Attr) (with slog.Handler) {
	return h.deriveHandler(func() slog.Handler { return h.to.WithAttrs(attrs) })
}

// WithGroup implements [slog.Handler].
func (h handler) WithGroup(name string) slog.Handler {
	return h.deriveHandler(func() slog.Handler { return h.to.WithGroup(name) })
}

func (h handler) deriveHandler(from func() slog.Handler) slog.Handler {
	derived := h
	_ = Call(func() error { derived.to = from(); return nil })
	return derived
}
