package cleantext_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/cleantext"
)

// named tells its text only when it is asked.
type named struct{ text string }

func (n named) LogValue() slog.Value { return slog.StringValue(n.text) }

// spiteful is an error that cannot be asked.
type spiteful struct{}

func (*spiteful) Error() string { panic("no") }

// A tracedError has more to say to those who ask for it, in several lines.
type tracedError struct{ error }

func (e tracedError) Format(s fmt.State, _ rune) { fmt.Fprint(s, e.Error(), "\nmain.go:1") }

// Unprintable text is escaped and bounded for every way of logging. A clean value stays itself, so that a
// handler can look into an error.
func TestLogger(t *testing.T) {
	t.Parallel()
	clean := tracedError{fmt.Errorf("wrapped: %w", io.EOF)}
	var cleaned error
	var log bytes.Buffer
	options := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == "clean" {
			cleaned, _ = a.Value.Any().(error)
		}
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	l := cleantext.Logger(slog.New(slog.NewJSONHandler(&log, options)))
	l.With("id", "a\u202eb").WithGroup("g").Info("said\u009b",
		"text", "\xff\ufffd\U000e0001 – é", "valuer", named{"\x7f"}, "n", 7, "none", nil,
		slog.Group("in", "deep", slog.GroupValue(slog.Any("err", errors.New("\u2028")))),
		"bytes", []byte("\x1b"), "struct", struct{ S string }{"\u202e"}, "spite", (*spiteful)(nil), "clean", clean)
	want := `{"level":"INFO","msg":"said\\u009b","id":"a\\u202eb","g":{` +
		`"text":"\\xff�\\U000e0001 – é","valuer":"\\x7f","n":7,"none":null,"in":{"deep":{"err":"\\u2028"}},` +
		`"bytes":"Gw==","struct":"{S:\\u202e}","spite":"<nil>","clean":"wrapped: EOF"}}` + "\n"
	if got := log.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if cleaned != clean {
		t.Errorf("the handler was given %#v, want the error itself", cleaned)
	}
	for _, long := range []string{strings.Repeat("é", 5000), strings.Repeat("\x00", 5000), strings.Repeat("\xbf", 5000)} {
		if got := cleantext.Visible(long); len(got) > cleantext.MaxLogText+20 || len(got) < cleantext.MaxLogText || !strings.HasSuffix(got, "…") {
			t.Errorf("of %.4q… there are %d bytes, ending in %q", long, len(got), got[len(got)-4:])
		}
	}
}
