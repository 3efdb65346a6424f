package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
)

var errOwn = errors.New("the function's own")

// Call and Apart return the function's error, or its panic with its stack; Apart returns what is
// left of a Goexit.
func TestCall(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(func() error) error{"Call": Call, "Apart": Apart} {
		if err := call(func() error { return nil }); err != nil {
			t.Errorf("%s = %v, want nil", name, err)
		}
		if err := call(func() error { return errOwn }); !errors.Is(err, errOwn) {
			t.Errorf("%s = %v, want %v", name, err, errOwn)
		}
		var panicked *PanicError
		err := call(func() error { panic(errOwn) })
		if !errors.As(err, &panicked) || panicked.Value != any(errOwn) || !strings.Contains(string(panicked.Stack), "guard_test.go") {
			t.Errorf("%s = %v, want the panic with its value and its stack", name, err)
		}
	}
	if err := Apart(func() error { runtime.Goexit(); return nil }); !errors.Is(err, ErrGoexit) {
		t.Errorf("Apart = %v, want %v", err, ErrGoexit)
	}
}

// A Hook that panics is one log line, with the value and the stack.
func TestHook(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	Hook(t.Context(), log, "test: option Hook", func() {})
	if lines.Len() > 0 {
		t.Errorf("a hook that returns is logged: %s", &lines)
	}
	Hook(t.Context(), log, "test: option Hook", func() { panic(errOwn) })
	for _, want := range []string{"test: option Hook failed", errOwn.Error(), "guard_test.go"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("the line %s has no %s", &lines, want)
		}
	}
}

// bursting is a log handler all of whose methods panic.
type bursting struct{}

func (bursting) Enabled(context.Context, slog.Level) bool  { panic(errOwn) }
func (bursting) Handle(context.Context, slog.Record) error { panic(errOwn) }
func (bursting) WithAttrs([]slog.Attr) slog.Handler        { panic(errOwn) }
func (bursting) WithGroup(string) slog.Handler             { panic(errOwn) }

// A silent one is enabled.
type silent struct{ bursting }

func (silent) Enabled(context.Context, slog.Level) bool { return true }

// A Logger passes lines on, with their attributes and groups, and survives its handler.
func TestLogger(t *testing.T) {
	t.Parallel()
	for _, h := range []slog.Handler{bursting{}, silent{}} {
		log := Logger(slog.New(h))
		log.With("a", 1).WithGroup("g").Info("nobody hears this")
		if again := Logger(log); again != log {
			t.Error("a guarded Logger is guarded again")
		}
	}
	var lines bytes.Buffer
	Logger(slog.New(slog.NewTextHandler(&lines, nil))).With("a", 1).WithGroup("g").Info("heard", "b", 2)
	if got := lines.String(); !strings.Contains(got, "msg=heard a=1 g.b=2") {
		t.Errorf("line %q", got)
	}
}
