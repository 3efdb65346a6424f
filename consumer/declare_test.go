package consumer

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/outbox"
)

// A message that is missing in a step's Emits is stored like any other, and is logged once. A reply needs no place in
// the list.
func TestAnEmitThatIsNotListedIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for name, emits := range map[string][]outbox.Output{
		"listed": {outbox.OutputOf[payment]("paid"), {Topic: "other", Type: "late"}}, "not listed": {outbox.OutputOf[payment]("paid")}, "no list": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			step := f.step(func(_ context.Context, _ pgx.Tx, in Message[payment], emit Emit) error {
				emit.JSON("paid", "ship", in.Body)
				emit(outbox.Message{Topic: "other", Type: "late", Step: "ship"}, outbox.Message{Topic: "saga.trip", Type: "saga.reply", Step: "ship"})
				return nil
			}, nil)
			step.Emits = emits
			var log bytes.Buffer
			c := f.consumer(t, Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))}, step)
			for _, key := range []string{"a", "b"} {
				msg := newMessage("pay", key, payment{1})
				msg.Metadata["x-sagamill-reply-to"] = "saga.trip"
				handle(t, c, msg)
			}
			want := []string{"other late 2", "paid paid 2", "saga.trip saga.reply 2"}
			got := f.texts(t, "SELECT concat_ws(' ', topic, "+outboxsql.LoggedType+", count(*)) FROM {schema}.outbox m GROUP BY topic, type ORDER BY 1")
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("outbox, -want +got:\n%s", diff)
			}
			logged := 0
			if name == "not listed" {
				logged = 1
			}
			if n := strings.Count(log.String(), `"step":"process-payment","topic":"other","type":"late"`); n != logged || strings.Count(log.String(), "Emits") != logged {
				t.Errorf("logged %d times, want %d:\n%s", n, logged, log.String())
			}
		})
	}
}

// An Input knows the type of its bodies, unless it takes them as they come.
func TestBodyType(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for want, in := range map[string]Input{
		"consumer.payment": On("pay", f.effect("paid")),
		"*string":          Effect[*string, int]("pay", nil, nil, nil),
		"":                 OnBytes("pay", nil),
	} {
		got := ""
		if body := in.BodyType(); body != nil {
			got = body.String()
		}
		if got != want {
			t.Errorf("BodyType is %q, want %q", got, want)
		}
	}
}
