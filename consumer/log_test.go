package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// A bareHandler writes values as they are, as a careless one would.
type bareHandler struct{ w io.Writer }

func (bareHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h bareHandler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h bareHandler) WithGroup(string) slog.Handler          { return h }

func (h bareHandler) Handle(ctx context.Context, r slog.Record) error {
	fmt.Fprint(h.w, r.Level, " ", r.Message)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "" {
			fmt.Fprint(h.w, " ", a.Key, "=", a.Value.Resolve())
		}
		return true
	})
	if entry := ctx.Value(entryKey{}); entry != nil {
		fmt.Fprint(h.w, " under ", entry)
	}
	fmt.Fprintln(h.w)
	return nil
}

// Whatever a message holds, a log line stays a line, and has neither key nor
// payload. Lines about an entry are written under its context.
func TestLogLines(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var log bytes.Buffer
	hostile := f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], _ Emit) error {
		if in.Body.Amount == 7 {
			return errors.New("two\nlines\x1b[31m")
		}
		return Terminal(errors.New("plain"))
	}, f.effect("refunded"))
	c := f.consumer(t, Options{Observer: &recorder{}, Logger: slog.New(bareHandler{&log})}, hostile)
	evil := newMessage("pay", "top-secret-key", payment{7})
	evil.UUID = "id\nERROR forged"
	evil.Metadata.Set(outbox.PropertyCorrelation, strings.Repeat("c", 5000))
	plain := newMessage("pay", "top-secret-key-2", payment{8})
	plain.UUID = "id-2"
	unread := newMessage("pay", "top-secret-key-3", payment{9})
	unread.UUID, unread.Payload = "\x1b[2J", []byte(`{"amount":"hidden"}`)
	unknown := newMessage("x", "top-secret-key-4", payment{1})
	unknown.UUID = "id-4"
	unknown.Metadata.Set(outbox.PropertyType, "a\nb")
	early := newMessage("unpay", "top-secret-key-5", payment{1})
	early.UUID = "id-5"
	handle(t, c, evil, plain, unread, early)
	if err := c.Handle(t.Context(), "x", unknown); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	c.executor.executeOne(over, over, jobsOf(t, c, act("k"))[0])

	lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
	want := []string{
		`WARN consumer: handler failed step=process-payment kind=action topic=pay message_id=id\nERROR forged correlation_id=` + strings.Repeat("c", 4096) + `… attempt=1 error=two\nlines\x1b[31m under top-secret-key-false-1`,
		`WARN consumer: handler failed step=process-payment kind=action topic=pay message_id=id-2 correlation_id=id-2 attempt=1 error=plain under top-secret-key-2-false-1`,
		`ERROR consumer: dead letter step=process-payment kind=action topic=pay message_id=id-2 correlation_id=id-2 attempt=1 reason=terminal attempts=1 error=plain under top-secret-key-2-false-1`,
		`ERROR consumer: dead letter topic=pay message_id=\x1b[2J reason=undecodable error=payload: json: cannot unmarshal string into Go struct field payment.amount of type int`,
		`INFO consumer: compensation before its action, which will not run any more step=process-payment kind=compensation topic=unpay message_id=id-5 correlation_id=id-5`,
		`ERROR consumer: dead letter topic=x message_id=id-4 reason=type-unknown error=no step of this consumer takes type "a\nb" from topic x`,
	}
	for i, line := range lines[:len(lines)-1] {
		if i >= len(want) || line != want[i] {
			t.Errorf("line %d:\n got %s\nwant %s", i, line, want[min(i, len(want)-1)])
		}
	}
	last := lines[len(lines)-1]
	if len(lines) != len(want)+1 || !strings.HasPrefix(last, "ERROR consumer: the outcome of a delivery could not be recorded, trying again topic=pay message_id=") || !strings.HasSuffix(last, "try=1 error=consumer: connect: context canceled") {
		t.Errorf("%d lines, the last: %s", len(lines), last)
	}
}
