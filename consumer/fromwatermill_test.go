package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/outbox"
)

// legacyHandler leaves an effect in the step's transaction and produces a message for each byte of its payload.
func (f *fixture) legacyHandler(msg *message.Message) ([]*message.Message, error) {
	tx, ok := TxFrom(msg.Context())
	if !ok {
		return nil, errors.New("no transaction")
	}
	if _, err := tx.Exec(msg.Context(), "INSERT INTO "+f.schema+".effect (what) VALUES ($1)", "shipped "+msg.UUID); err != nil {
		return nil, err
	}
	var produced []*message.Message
	for _, b := range msg.Payload {
		out := message.NewMessage("produced", []byte{b})
		for name, value := range msg.Metadata {
			out.Metadata.Set(name, value) // as handlers do that pass all metadata on
		}
		out.Metadata.Set("byte", string(b))
		produced = append(produced, out)
	}
	return produced, nil
}

// A handler for a watermill Router becomes a step: what it writes and what it produces commit once, together.
func TestFromWatermillPublishesThroughTheOutbox(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{Identity: IdentityFromUUID("legacy")}, FromWatermillHandler("ship", "orders", "shipped", f.legacyHandler))
	msg := foreign("a", "{x")
	msg.Metadata.Set("tenant", "t")
	msg.Metadata.Set(outbox.PropertyType, "order-placed") // the only handler on a topic takes all its types
	deliverTo(t, c, "orders", msg, msg.Copy())
	if got := f.effects(t); got != "shipped a" {
		t.Errorf("effects are %q", got)
	}
	got := f.texts(t, `SELECT concat_ws('|', topic, `+outboxsql.LoggedType+`, scope, key, step, length(n), `+outboxsql.LoggedContentType+`, convert_from(payload, 'UTF8'), headers->>'byte', headers->>'tenant') FROM {schema}.outbox m ORDER BY id`)
	want := []string{
		"shipped|shipped|legacy|a|ship|16|application/octet-stream|{|{|t",
		"shipped|shipped|legacy|a|ship|16|application/octet-stream|x|x|t",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("outbox, -want +got:\n%s", diff)
	}
	if n := f.texts(t, "SELECT count(DISTINCT n)::text FROM {schema}.outbox"); n[0] != "2" {
		t.Errorf("%s different n, want 2", n[0])
	}
}

// The n of a produced message tells steps, action and compensation, handled messages and places apart, and is the same
// for each attempt.
func TestFromWatermillNamesWhatItProduces(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, step := range []string{"a", "a1"} {
		for _, n := range []string{"", "1", "11"} {
			for place := range 24 {
				d := &Delivery{Step: step, N: n, Undo: place%2 == 1}
				msg := message.NewMessage("", nil)
				m, again := producedMessage(d, "t", place/2, msg), producedMessage(d, "t", place/2, msg)
				of := fmt.Sprint(step, "/", n, "/", place/2, "/", d.Undo)
				if seen[m.N] != "" || m.N != again.N {
					t.Errorf("%s has n %s, as %q", of, m.N, seen[m.N])
				}
				seen[m.N] = of
			}
		}
	}
}

// An error, a nack and a panic of the handler fail the attempt, and nothing that it wrote or produced stays. An ack
// before the return changes nothing.
func TestFromWatermillFailsTheAttempt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(msg *message.Message) error{
		"error":           func(*message.Message) error { return errors.New("not now") },
		"nack":            func(msg *message.Message) error { msg.Nack(); return nil },
		"panic":           func(*message.Message) error { panic("not now") },
		"ack, then error": func(msg *message.Message) error { msg.Ack(); return errors.New("not now") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			failures := 1
			step := FromWatermillHandler("ship", "orders", "shipped", func(msg *message.Message) ([]*message.Message, error) {
				produced, err := f.legacyHandler(msg)
				if failures--; err == nil && failures >= 0 {
					err = end(msg)
				}
				return produced, err
			})
			step.RetryBase, step.RetryCap = 1, 1
			c := f.consumer(t, Options{Identity: IdentityFromUUID("legacy")}, step)
			deliverTo(t, c, "orders", foreign("a", "x"))
			outboxed := func() string { return f.texts(t, "SELECT count(*)::text FROM {schema}.outbox")[0] }
			if got := f.effects(t); got != "" || outboxed() != "0" || f.parked(t) != "retrying action failed 1" {
				t.Errorf("after the failure: effects %q, %s in the outbox, parked %q", got, outboxed(), f.parked(t))
			}
			runParkedOnce(t, c)
			if got := f.effects(t); got != "shipped a" || outboxed() != "1" || f.parked(t) != "" {
				t.Errorf("after the retry: effects %q, %s in the outbox, parked %q", got, outboxed(), f.parked(t))
			}
		})
	}
}

// A step that cannot work is refused by New, which names what is missing.
func TestFromWatermillIsChecked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	produce := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	for _, step := range []Step{
		FromWatermill("ship", "orders", nil), FromWatermillHandler("ship", "orders", "shipped", nil), FromWatermillHandler("ship", "orders", "", produce),
	} {
		_, err := New(f.pool, nil, []Step{step}, nil)
		if err == nil || !strings.Contains(err.Error(), `step "ship": Action: FromWatermill needs a handler`) {
			t.Errorf("New: %v", err)
		}
	}
}

// The handler that needs no transaction runs unchanged, and TxFrom says outside a step that there is none.
func TestFromWatermillWithoutTransaction(t *testing.T) {
	t.Parallel()
	if _, ok := TxFrom(context.Background()); ok {
		t.Error("a transaction outside a step")
	}
	f := newFixture(t)
	var came []string
	c := f.consumer(t, Options{}, FromWatermill("ship", "orders", func(msg *message.Message) error {
		came = append(came, msg.UUID+" "+string(msg.Payload)+" "+msg.Metadata.Get(outbox.HeaderScope))
		return nil
	}))
	msg := newMessage("orders", "k", payment{1})
	msg.UUID = "id"
	msg.Metadata.Set(outbox.PropertyContentType, "application/x-protobuf")
	deliverTo(t, c, "orders", msg, msg.Copy())
	if diff := gocmp.Diff([]string{`id {"amount":1} tenant`}, came); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A handler that passes all metadata on does not make what it produces a command of the saga, a replay, or the event that
// it has handled.
func TestFromWatermillPassesNothingOnThatBelongsToTheHandledMessage(t *testing.T) {
	t.Parallel()
	metadata := message.Metadata{
		"x-sagamill-reply-to": "saga.trip", outbox.HeaderReplayed: "yes", "cloudEvents_specversion": "1.0", "cloudEvents_id": "7",
		"cloudEvents_subject": "order/1", "tenant": "t", outbox.HeaderTraceParent: "trace",
	}
	msg := message.NewMessage("", nil)
	maps.Copy(msg.Metadata, metadata)
	msg.Metadata["cloudEvents_subject"] = "shipment/1" // by the handler
	got := producedMessage(&Delivery{Step: "a", Metadata: metadata}, "t", 0, msg).Headers
	want := map[string]string{"cloudEvents_subject": "shipment/1", "tenant": "t", outbox.HeaderTraceParent: "trace"}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("headers, -want +got:\n%s", diff)
	}
}
