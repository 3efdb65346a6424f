package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLogText is how much of a text goes into a log line, in bytes.
const maxLogText = 4 << 10

// cleanLog makes log lines of texts that came with messages, whatever they hold:
// slog's own JSON leaves DEL, the control characters of Latin-1 and those that turn
// the direction of writing as they are, and terminals act on them.
func cleanLog(l *slog.Logger) *slog.Logger { return slog.New(cleanHandler{l.Handler()}) }

type cleanHandler struct{ slog.Handler }

func (h cleanHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(cleanAttr(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

func (h cleanHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return cleanHandler{h.Handler.WithAttrs(attrs)}
}

func (h cleanHandler) WithGroup(name string) slog.Handler {
	return cleanHandler{h.Handler.WithGroup(name)}
}

func cleanAttr(a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(visible(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok && err != nil {
			a.Value = slog.StringValue(visible(err.Error()))
		}
	}
	return a
}

// visible escapes what cannot be printed in at most maxLogText bytes of s.
func visible(s string) string {
	if len(s) > maxLogText {
		s = s[:maxLogText] + "…"
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
