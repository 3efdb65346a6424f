package consumer

import (
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// sendRound makes every dead letter retrying, without its identity.
func (f *fixture) sendRound(t *testing.T, change string) {
	t.Helper()
	f.exec(t, "UPDATE {schema}.parked SET state = 'retrying', due_at = clock_timestamp()"+change)
}

// A redriven message that could not be read is read again. If it still cannot be read, it becomes a dead letter
// again, for the present reason.
func TestAMessageWithoutAnIdentityIsReadAgain(t *testing.T) {
	t.Parallel()
	const key = "k:process-payment"
	for name, tt := range map[string]struct {
		change string // of what is parked
		want   stored
	}{
		"as it came":      {"", stored{Parked: "dead unknown key-missing 0"}},
		"mended":          {", header_names = header_names || 'x-idempotency-key'::bytea, header_values = header_values || '" + key + "'::bytea", stored{Row: "done 1 0"}},
		"wrong mended":    {", header_names = header_names || 'x-idempotency-key'::bytea, header_values = header_values || '" + key + "#'::bytea", stored{Parked: "dead unknown key-malformed 0"}},
		"ended a process": {", attempts = 3", stored{Parked: "dead unknown attempts-exhausted 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.consumer(t, Options{}, f.step(f.effect("paid"), nil))
			msg := act("k")
			delete(msg.Metadata, outbox.HeaderKey)
			handle(t, c, msg)
			f.sendRound(t, tt.change)
			runParkedOnce(t, c)
			compareStored(t, tt.want, stored{Row: f.row(t), Parked: f.parked(t)})
		})
	}
}

// That holds for the messages of an Effect, too.
func TestAMessageOfAnEffectIsReadAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t, true)
	c := f.consumer(t, Options{}, f.effectStep(p.url, false))
	msg := saying(act("k"), "{")
	handle(t, c, msg)
	f.sendRound(t, `, payload = '{"amount":1}'`)
	if n := runParkedOnce(t, c); n != 1 || f.effects(t) != "receipt of pay k 1" {
		t.Errorf("%d ran, effects %q, parked %q; want the call's", n, f.effects(t), f.parked(t))
	}
}

// Two copies turn out to be one message. The copy that is already retrying wins, also if it gets the identity
// between the other copy's reading and naming.
func TestARetryingCopyWins(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		other *message.Message
		want  string
	}{
		"the same": {act("k"), "retrying action failed 1"},
		"another":  {newMessage("pay", "k", payment{3}), "retrying action failed 1; dead action key-reused 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			step := f.step(f.failing(1, "paid", new(atomic.Int32)), nil)
			c := f.consumer(t, Options{}, step)
			handle(t, c, act("k"))
			f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity'")
			tt.other.Metadata.Set(outbox.PropertyType, "")
			if err := c.Handle(t.Context(), "pay", tt.other); err != nil {
				t.Fatal(err)
			}
			f.exec(t, "UPDATE {schema}.parked SET state = 'retrying', due_at = clock_timestamp(), header_values = ARRAY['tenant', 'k:process-payment', 'pay']::bytea[], header_names = ARRAY['x-idempotency-scope', 'x-idempotency-key', 'type']::bytea[] WHERE kind = 'unknown'")
			if n := runParkedOnce(t, c); n != 1 {
				t.Fatalf("%d messages were due", n)
			}
			if got := f.parked(t); got != tt.want {
				t.Errorf("parked %q, want %q", got, tt.want)
			}
		})
	}
}

// Only a consumer of its topic takes a message without an identity.
func TestAMessageOfAnotherTopicIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.effect("paid"), f.effect("refunded")))
	handle(t, c, message.NewMessage("1", nil))
	f.sendRound(t, "")
	if n := runParkedOnce(t, c); n != 0 {
		t.Errorf("%d messages of another topic were taken", n)
	}
	f.exec(t, "UPDATE {schema}.parked SET topic = 'unpay'")
	if n := runParkedOnce(t, c); n != 1 {
		t.Errorf("%d messages of the compensation's topic were taken, want 1", n)
	}
}

// A parked message never runs as another step's, regardless of how it was edited.
func TestAParkedMessageKeepsItsStep(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := Step{Name: "other", Action: On("other", f.effect("other"))}
	other.Action.Topic = "pay"
	c := f.consumer(t, Options{}, f.step(f.failing(1, "paid", new(atomic.Int32)), nil), other)
	handle(t, c, act("k"))
	f.exec(t, "UPDATE {schema}.parked SET header_values = ARRAY['tenant', 'k:process-payment', 'other']::bytea[], header_names = ARRAY['x-idempotency-scope', 'x-idempotency-key', 'type']::bytea[]")
	runParkedOnce(t, c)
	compareStored(t, stored{Row: "dead 1 0", Parked: "dead action type-unknown 1"}, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
}

// The digest of a message that was edited is that of what it said first.
func TestAnEditedMessageIsTheSame(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.failing(1, "paid", new(atomic.Int32)), nil))
	handle(t, c, act("k"))
	f.exec(t, `UPDATE {schema}.parked SET digest = sha256(payload), payload = '{"amount":9}'`)
	runParkedOnce(t, c)
	handle(t, c, act("k"))
	compareStored(t, stored{Row: "done 2 0", Effects: "paid k 9"}, stored{Row: f.row(t), Parked: f.parked(t), Effects: f.effects(t)})
}
