package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLogText is how much of a text goes into a log line, in bytes.
const maxLogText = 4 << 10

// cleanLog makes log lines of texts that came with messages, whatever they hold:
// slog's own JSON leaves DEL, the control characters of Latin-1 and those that turn
// the direction of writing as they are, and terminals act on them. It does so for
// every line, so that none of those who log has to think of it.
func cleanLog(l *slog.Logger) *slog.Logger { return slog.New(cleanHandler{l.Handler()}) }

type cleanHandler struct{ slog.Handler }

func (h cleanHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, visible(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(cleanAttr(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

func (h cleanHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return cleanHandler{h.Handler.WithAttrs(cleanAttrs(attrs))}
}

func (h cleanHandler) WithGroup(name string) slog.Handler {
	return cleanHandler{h.Handler.WithGroup(name)}
}

func cleanAttrs(attrs []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = cleanAttr(a)
	}
	return clean
}

// cleanAttr leaves what is clean as it is, for handlers that look into errors.
func cleanAttr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		v = slog.StringValue(visible(v.String()))
	case slog.KindGroup:
		v = slog.GroupValue(cleanAttrs(v.Group())...)
	case slog.KindAny:
		if text := textOf(v.Any()); visible(text) != text {
			v = slog.StringValue(visible(text))
		}
	}
	return slog.Attr{Key: a.Key, Value: v}
}

// textOf is what a handler writes for v, or about that. fmt survives an Error that
// panics.
func textOf(v any) string {
	if err, ok := v.(error); ok {
		v = struct{ error }{err} // without a Format of its own
	}
	return fmt.Sprintf("%+v", v)
}

// visible returns s with what cannot be printed as in a Go literal, and no more
// than its beginning if that is longer than maxLogText.
func visible(s string) string {
	if len(s) <= maxLogText && isVisible(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if b.Len() >= maxLogText {
			b.WriteString("…")
			break
		}
		switch {
		case isInvalid(s[i:], r):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

func isVisible(s string) bool {
	for i, r := range s {
		if !unicode.IsPrint(r) || isInvalid(s[i:], r) {
			return false
		}
	}
	return true
}

// isInvalid reports whether rest, from which r was decoded, begins with a byte
// that is no UTF-8: U+FFFD may also be what somebody has written.
func isInvalid(rest string, r rune) bool {
	return r == utf8.RuneError && !strings.HasPrefix(rest, "\ufffd")
}
