package consumer

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/outbox"
)

// Whatever arrives is a job or a rejection with a reason, comes back from the
// database as it was, and leads to messages that the outbox takes.
func FuzzRead(f *testing.F) {
	pool, err := pgxpool.New(context.Background(), "postgres://127.0.0.1:1/none") // never used
	if err != nil {
		f.Fatal(err)
	}
	defer pool.Close()
	handler := func(context.Context, pgx.Tx, Message[payment], Emit) error { return nil }
	c, err := New(pool, newQueueSubscriber(), []Step{{Name: "pay", Action: On("pay", handler), Compensation: On("unpay", handler)}}, &Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("k:pay", "tenant", "pay", "id", "saga", "2026-01-02T03:04:05Z", "application/json", []byte(`{"amount":1}`))
	f.Add("k:pay#2", "tenant", "unpay", "0197b3a2-0000-7000-8000-000000000000", "0197b3a2-0000-7000-8000-000000000000", "yesterday", "", []byte(`{"amount":9007199254740993}`))
	f.Add("\x1b[31m:pay", "\xff", "pay\x00", "\u202e", "\x00", "9999-12-31T23:59:60Z", ";=", []byte(`{"amount":1,"AMOUNT":2}`))
	f.Add("", "", "", "", "", "", "text/xml", []byte(strings.Repeat("[", 20_000)))
	f.Fuzz(func(t *testing.T, key, scope, typ, id, correlation, timestamp, contentType string, body []byte) {
		msg := message.NewMessage(id, body)
		msg.Metadata = message.Metadata{
			outbox.HeaderKey: key, outbox.HeaderScope: scope, outbox.PropertyType: typ, outbox.PropertyCorrelation: correlation,
			outbox.PropertyTimestamp: timestamp, outbox.PropertyContentType: contentType, outbox.HeaderTraceParent: id, outbox.HeaderTraceState: timestamp,
		}
		for _, topic := range []string{"pay", "unpay"} {
			checkRead(t, c, topic, msg)
		}
		names, values := headerColumns(msg.Metadata)
		row := parkedRow{MessageID: []byte(msg.UUID), HeaderNames: names, HeaderValues: values, Payload: body}
		if again := row.message(); again.UUID != msg.UUID || !maps.Equal(again.Metadata, msg.Metadata) || string(again.Payload) != string(body) {
			t.Errorf("came back as %q %q", again.UUID, again.Metadata)
		}
		if v := cleantext.Visible(id + key); strings.ContainsAny(v, "\x00\x1b\r\n\x7f") || !utf8.ValidString(v) || len(v) > 6*cleantext.MaxLogText+16 {
			t.Errorf("%q logged as %q", id+key, v)
		}
	})
}

func checkRead(t *testing.T, c *Consumer, topic string, msg *message.Message) {
	a, rejected := readAttempt(c, topic, msg)
	if (a == nil) == (rejected == nil) {
		t.Fatalf("read = %v, %v", a, rejected)
	}
	if rejected != nil {
		text, _ := failure{err: rejected.err}.errorText()
		if rejected.reason == "" || text == "" || !utf8.ValidString(text) || strings.ContainsRune(text, 0) || len(text) > maxErrorText {
			t.Errorf("rejected for %q: %q", rejected.reason, text)
		}
		return
	}
	if a.Key == "" || len(a.Key) > 255 || !cleantext.Printable(a.Key) || a.Scope == "" || len(a.Scope) > outbox.MaxScope || !cleantext.Printable(a.Scope) || a.Step != "pay" || len(a.EffectKey()) == 0 {
		t.Errorf("identity %q %q %q %q", a.Scope, a.Key, a.Step, a.N)
	}
	_ = decide(cell{}, a.arrival())
	if err := outbox.Validate(a.follows(outbox.Message{Topic: "t", Step: "ship", Payload: []byte("{}")})); err != nil {
		t.Errorf("what it leads to is refused: %v", err)
	}
}

// Whatever an Identity returns and whatever metadata a foreign message has: it becomes a message with that identity, or
// a dead letter with the reason of its own. An identity that was accepted is read back from the headers as it was.
func FuzzIdentity(f *testing.F) {
	r := &receiver{routes: map[routeKey]route{{"pay", "pay"}: {step: &Step{Name: "pay"}, input: Input{raw: true, decode: keepPayload, anyType: true}}}, maxPayload: 100}
	f.Add("tenant", "k", "", "id", "pay", "2026-01-02T03:04:05Z")
	f.Add("tenant", "a:b c", "2", "0197b3a2-0000-7000-8000-000000000000", "", "")
	f.Add("\xff", "\x1b[31m", ".x.y", "\x00", "\u202e", "yesterday")
	f.Add("", strings.Repeat("k", 256), "#", "", "other", "")
	f.Fuzz(func(t *testing.T, scope, key, n, id, typ, timestamp string) {
		r.identity = func(*message.Message) (string, string, string, error) { return scope, key, n, nil }
		msg := message.NewMessage(id, []byte("body"))
		sent := message.Metadata{outbox.PropertyType: typ, outbox.PropertyTimestamp: timestamp}
		msg.Metadata = maps.Clone(sent)
		m, rejected := r.readMessage("pay", msg)
		if rejected != nil {
			if rejected.reason != ReasonIdentity || checkIdentity(scope, key, n) == nil || !maps.Equal(msg.Metadata, sent) {
				t.Fatalf("(%q, %q, %q): %s %v, metadata %v", scope, key, n, rejected.reason, rejected, msg.Metadata)
			}
			return
		}
		if m.Scope != scope || m.Key != key || m.N != n || m.Incarnation != "" || m.Type != "pay" || m.Step != "pay" || m.ID != id {
			t.Fatalf("(%q, %q, %q) of %q became %+v", scope, key, n, id, m.Delivery)
		}
		if _, rejected := r.readMessage("pay", msg.Copy()); rejected != nil {
			t.Fatalf("its stored copy is rejected: %v", rejected)
		}
	})
}
