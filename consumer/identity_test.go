package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/outbox"
)

// foreign is a message as watermill-amqp publishes it: without headers of sagamill.
func foreign(uuid string, payload string) *message.Message {
	return message.NewMessage(uuid, []byte(payload))
}

// deliverTo hands msg to the step on topic.
func deliverTo(t *testing.T, c *Consumer, topic string, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		if err := c.Handle(t.Context(), topic, msg); err != nil {
			t.Fatalf("Handle: %v", err)
		}
	}
}

// A message without headers of sagamill is handled once under the identity that the option gives it. Another payload
// under that identity is a dead letter, and without the option the message is one.
func TestIdentityNamesForeignMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{Identity: IdentityFromUUID("legacy")}, f.step(f.effect("paid"), nil))
	deliverTo(t, c, "pay", foreign("a", `{"amount":1}`), foreign("a", `{"amount":1}`), foreign("b", `{"amount":1}`), foreign("a", `{"amount":2}`))
	compareStored(t, stored{Parked: "dead action key-reused 0", Effects: "paid a 1, paid b 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
	if got := strings.Join(f.texts(t, "SELECT concat_ws(' ', scope, key, step, n) FROM {schema}.inbox ORDER BY key"), "; "); got != "legacy a process-payment ; legacy b process-payment " {
		t.Errorf("rows of the inbox are %q", got)
	}

	f = newFixture(t)
	c = f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
	deliverTo(t, c, "pay", foreign("a", `{"amount":1}`))
	compareStored(t, stored{Parked: "dead unknown key-missing 0"}, stored{Parked: f.parked(t)})
}

// A message that has the headers keeps its own identity, and one whose header is empty or malformed does not get
// another one.
func TestIdentityLeavesHeadersOfSagamillAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	asked := 0
	identity := func(*message.Message) (string, string, string, error) { asked++; return "legacy", "other", "", nil }
	c := f.consumer(t, Options{Identity: identity}, f.step(f.effect("paid"), nil))
	empty, malformed := act("k"), act("k")
	empty.Metadata[outbox.HeaderKey], malformed.Metadata[outbox.HeaderKey] = "", "no colon"
	deliverTo(t, c, "pay", act("k"), empty, malformed)
	want := stored{Parked: "dead unknown key-missing 0; dead unknown key-malformed 0", Effects: "paid k 1"}
	compareStored(t, want, stored{Parked: f.parked(t), Effects: f.effects(t)})
	if asked != 0 {
		t.Errorf("the option was called %d times", asked)
	}
}

// An identity that fails, panics or is outside the limits makes a dead letter with a reason of its own, which is
// counted. Redriven, it is named again.
func TestIdentityThatIsUnusableMakesADeadLetter(t *testing.T) {
	t.Parallel()
	for name, identity := range map[string]Identity{
		"error":         func(*message.Message) (string, string, string, error) { return "s", "k", "", errors.New("no order") },
		"panic":         func(*message.Message) (string, string, string, error) { panic("out of range") },
		"no scope":      func(*message.Message) (string, string, string, error) { return "", "k", "", nil },
		"no key":        func(*message.Message) (string, string, string, error) { return "s", "", "", nil },
		"long key":      func(*message.Message) (string, string, string, error) { return "s", strings.Repeat("k", 256), "", nil },
		"long scope":    func(*message.Message) (string, string, string, error) { return strings.Repeat("s", 256), "k", "", nil },
		"long n":        func(*message.Message) (string, string, string, error) { return "s", "k", strings.Repeat("1", 65), nil },
		"incarnation":   func(*message.Message) (string, string, string, error) { return "s", "k", ".x.1", nil },
		"control":       func(*message.Message) (string, string, string, error) { return "s", "k\x00", "", nil },
		"no UUID":       IdentityFromUUID("s"),
		"no metadata":   IdentityFromMetadata("s", "order-id"),
		"no member":     IdentityFromPayload("s", "order.id"),
		"array":         IdentityFromPayload("s", "amounts"),
		"member twice":  IdentityFromPayload("s", "twice"),
		"null":          IdentityFromPayload("s", "null"),
		"not an object": IdentityFromPayload("s", "amount.id"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{Identity: identity}, f.step(f.effect("paid"), nil))
			payload := `{"amount":1,"amounts":[1],"null":null}`
			if name == "member twice" {
				payload = `{"twice":1,"twice":2}`
			}
			deliverTo(t, c, "pay", foreign("", payload))
			want := stored{Parked: "dead unknown identity-unusable 0"}
			compareStored(t, want, stored{Parked: f.parked(t), Effects: f.effects(t)})
			if got := c.Counters().Rejected; got[ReasonIdentity] != 1 {
				t.Errorf("counted %v", got)
			}
			good := f.consumer(t, Options{Identity: func(*message.Message) (string, string, string, error) { return "s", "mended", "", nil }}, f.step(f.effect("paid"), nil))
			if _, err := f.desk(t).Redrive(t.Context()); err != nil {
				t.Fatal(err)
			}
			runParkedOnce(t, good)
			if got := f.effects(t); name != "member twice" && got != "paid mended 1" {
				t.Errorf("after a redrive with another identity the effects are %q, parked %q", got, f.parked(t))
			}
		})
	}
}

// The three usual identities read what they are named for.
func TestIdentityHelpers(t *testing.T) {
	t.Parallel()
	msg := foreign("uuid", `{"order":{"id":"o-1","no":17,"price":1.50}}`)
	msg.Metadata.Set("order-id", "m-1")
	type named struct{ Scope, Key, N string }
	for want, identity := range map[named]Identity{
		{"s", "uuid", ""}: IdentityFromUUID("s"),
		{"s", "m-1", ""}:  IdentityFromMetadata("s", "order-id"),
		{"s", "o-1", ""}:  IdentityFromPayload("s", "order.id"),
		{"s", "17", ""}:   IdentityFromPayload("s", "order.no"),
		{"s", "1.50", ""}: IdentityFromPayload("s", "order.price"),
	} {
		scope, key, n, err := identity(msg)
		if diff := gocmp.Diff(want, named{scope, key, n}); err != nil || diff != "" {
			t.Errorf("%v, -want +got:\n%s", err, diff)
		}
	}
}

// The retry of a foreign message keeps the identity and the time of its first arrival, although the option would now
// give it another one.
func TestIdentityIsKeptForRetries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls := 0
	identity := func(*message.Message) (string, string, string, error) {
		calls++
		return "legacy", strings.Repeat("k", calls), "", nil
	}
	failures := 1
	handler := func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		if failures--; failures >= 0 {
			return errors.New("not now")
		}
		if _, err := time.Parse(time.RFC3339, in.Metadata.Get(outbox.PropertyTimestamp)); err != nil {
			return Terminal(err)
		}
		return f.effect("paid")(ctx, tx, in, emit)
	}
	c := f.consumer(t, Options{Identity: identity}, f.step(handler, nil))
	deliverTo(t, c, "pay", foreign(uuid.NewString(), `{"amount":1}`))
	runParkedOnce(t, c)
	compareStored(t, stored{Effects: "paid k 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}

// A foreign message without a type belongs to the only input on its topic. Where there are two, it says itself which.
func TestIdentityRoutesByTopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := Step{Name: "refund", Action: On("pay", f.effect("refunded"))}
	other.Action.Type = "refund"
	opts := Options{Identity: IdentityFromUUID("legacy")}
	both := f.consumer(t, opts, f.step(f.effect("paid"), nil), other)
	typed := foreign("typed", `{"amount":1}`)
	typed.Metadata.Set(outbox.PropertyType, "refund")
	deliverTo(t, both, "pay", typed, foreign("untyped", `{"amount":1}`))
	compareStored(t, stored{Parked: "dead unknown type-missing 0", Effects: "refunded typed 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}

// A foreign message over the limit of payload is a dead letter for that, and the option need not read it.
func TestIdentityIsNotAskedAboutATooLargePayload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	identity := func(msg *message.Message) (string, string, string, error) { panic("asked") }
	c := f.consumer(t, Options{Identity: identity, MaxPayload: 10}, f.step(f.effect("paid"), nil))
	large, _ := json.Marshal(strings.Repeat("x", 20))
	deliverTo(t, c, "pay", foreign("a", string(large)))
	compareStored(t, stored{Parked: "dead unknown too-large 0"}, stored{Parked: f.parked(t)})
}
