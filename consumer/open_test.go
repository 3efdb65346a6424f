package consumer

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// An opener takes payloads out of envelopes.
type opener struct{ broken atomic.Bool }

const envelope = "envelope:"

func (o *opener) open(msg *message.Message) error {
	body, is := strings.CutPrefix(string(msg.Payload), envelope)
	if is && o.broken.Load() {
		return errors.New("it cannot be opened")
	}
	msg.Payload = []byte(body)
	return nil
}

func enveloped(msg *message.Message) *message.Message {
	msg = msg.Copy()
	msg.Payload = append([]byte(envelope), msg.Payload...)
	return msg
}

// opening returns a fixture whose consumer opens envelopes and verifies what is in them.
func opening(t *testing.T) (*letterFixture, *opener, *prover) {
	t.Helper()
	f, o, p := &letterFixture{fixture: newFixture(t)}, &opener{}, &prover{}
	f.c = f.consumer(t, Options{Open: o.open, Verify: p.verify}, answering(paying(f.fixture)))
	f.letters = f.desk(t)
	return f, o, p
}

// A message that cannot be opened was not verified. A redrive opens and verifies it: a forged one neither runs nor gets
// an answer.
func TestAMessageThatCannotBeOpenedIsVerifiedWhenItIsRedriven(t *testing.T) {
	t.Parallel()
	f, o, p := opening(t)
	o.broken.Store(true)
	handle(t, f.c, enveloped(act("k")))
	if p.asked.Load() != 0 {
		t.Error("a message in its envelope was verified")
	}
	f.redriveAll(t)
	compareStored(t, stored{Parked: "dead unknown unopened 0"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
	o.broken.Store(false)
	f.redriveAll(t)
	compareStored(t, stored{Parked: "dead unknown unverified 0"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
	if got := f.emitted(t, "answer"); len(got) != 0 {
		t.Errorf("answered %q", got)
	}
	f.sendRound(t, ", attempts = 3") // reading it ended the process
	o.broken.Store(true)
	runParkedOnce(t, f.c)
	compareStored(t, stored{Parked: "dead unknown unverified 3"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}

// Once it can be opened, a genuine message runs, and is the same message as a copy of it that comes.
func TestAMessageThatCouldNotBeOpenedRunsOnce(t *testing.T) {
	t.Parallel()
	f, o, _ := opening(t)
	genuine := enveloped(proven(act("k")))
	o.broken.Store(true)
	handle(t, f.c, genuine.Copy())
	o.broken.Store(false)
	f.redriveAll(t)
	handle(t, f.c, genuine.Copy())
	compareStored(t, stored{Effects: "paid k 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}

// A letter of a consumer without Options.Open is opened when it is redriven after that was set, and a preview knows what
// becomes of it.
func TestALetterInItsEnvelopeIsOpenedWhenThereIsAnOpen(t *testing.T) {
	t.Parallel()
	f := &letterFixture{fixture: newFixture(t)}
	f.letters = f.desk(t)
	before := f.consumer(t, Options{}, paying(f.fixture))
	f.c = f.consumer(t, Options{Open: (&opener{}).open, Identity: IdentityFromUUID("legacy")}, paying(f.fixture))
	nameless := enveloped(foreign("nameless", `{"amount":1}`))
	handle(t, before, enveloped(act("k")))
	deliverTo(t, before, "pay", nameless.Copy())
	compareStored(t, stored{Parked: "dead unknown undecodable 0; dead unknown key-missing 0"}, stored{Parked: f.parked(t)})
	deliverTo(t, f.c, "pay", nameless.Copy())
	outcomes, err := f.letters.Preview(t.Context(), f.c)
	if got := strings.Join(outcomes, " "); err != nil || got != "run duplicate" {
		t.Errorf("the preview says %q (%v)", got, err)
	}
	f.redriveAll(t)
	compareStored(t, stored{Effects: "paid nameless 1, paid k 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}

// A payload within the limit is opened, though its envelope is much larger.
func TestAnEnvelopeMayBeLargerThanItsPayload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	open := func(msg *message.Message) error {
		msg.Payload = []byte(strings.TrimSpace(string(msg.Payload)))
		return nil
	}
	c := f.consumer(t, Options{Open: open, MaxPayload: 20}, paying(f))
	msg := act("k")
	msg.Payload = append([]byte(strings.Repeat(" ", outbox.MaxHeaderBytes)), msg.Payload...)
	handle(t, c, msg)
	compareStored(t, stored{Effects: "paid k 1"}, stored{Parked: f.parked(t), Effects: f.effects(t)})
}
