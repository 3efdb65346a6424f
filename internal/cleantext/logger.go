package cleantext

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLogText is the most bytes of one text in a log line.
const MaxLogText = 4 << 10

// Logger returns l with every text of a line escaped and bounded by [Visible]. Texts of
// messages can hold anything: slog's JSON leaves DEL, the C1 control characters and those
// that change the direction of writing as they are, and terminals act on them.
func Logger(l *slog.Logger) *slog.Logger { return slog.New(handler{l.Handler()}) }

type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, Visible(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(cleanAttr(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(cleanAttrs(attrs))}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name)}
}

func cleanAttrs(attrs []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = cleanAttr(a)
	}
	return clean
}

// cleanAttr returns a with clean text. A value whose text is clean already stays itself, so
// that a handler can look into an error.
func cleanAttr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		v = slog.StringValue(Visible(v.String()))
	case slog.KindGroup:
		v = slog.GroupValue(cleanAttrs(v.Group())...)
	case slog.KindAny:
		if text := textOf(v.Any()); Visible(text) != text {
			v = slog.StringValue(Visible(text))
		}
	}
	return slog.Attr{Key: a.Key, Value: v}
}

// textOf returns roughly what a handler writes for v. An Error method that panics does not
// get through fmt.
func textOf(v any) string {
	if err, ok := v.(error); ok {
		v = struct{ error }{err} // hides a Format method of err
	}
	return fmt.Sprintf("%+v", v)
}

// Visible returns s with unprintable characters escaped as in a Go literal. A text longer
// than [MaxLogText] is cut there and ends in "…".
func Visible(s string) string {
	if len(s) <= MaxLogText && isVisible(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if b.Len() >= MaxLogText {
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

// isInvalid reports whether rest, from which r was decoded, begins with a byte that is not
// UTF-8. A U+FFFD that the sender wrote is valid.
func isInvalid(rest string, r rune) bool {
	return r == utf8.RuneError && !strings.HasPrefix(rest, "\ufffd")
}
