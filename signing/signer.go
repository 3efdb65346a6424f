package signing

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// ErrExpired reports a key whose NotAfter has passed.
var ErrExpired = errors.New("signing: the key has expired")

// A Signer signs messages with one key. Any number of goroutines may use it.
type Signer struct{ machine *machine }

// NewSigner returns a Signer with key. Its error says why the key is invalid.
func NewSigner(key Key) (*Signer, error) {
	m, err := newMachine(key)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	return &Signer{machine: m}, nil
}

// Sign sets [Header] of msg to the signature for topic, and replaces an existing one. After that, nothing
// that the signature covers may change. The only error is an [ErrExpired]; msg is then unchanged.
func (s *Signer) Sign(topic string, msg *message.Message) error {
	if s.machine.hasExpired() {
		return fmt.Errorf("%w: %s", ErrExpired, s.machine.ID)
	}
	p := s.machine.parts.Get().(*part)
	defer s.machine.parts.Put(p)
	p.signMessage(s.machine.ID, topic, msg)
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[Header] = p.headerValue(s.machine.ID)
	return nil
}

// Publisher returns a publisher for a relay. It signs messages and hands them to next, batch by batch, and
// returns next's results. After the key has expired it hands no message on, and every result is an
// [ErrExpired]. That is not a refusal: the messages stay in the outbox until a relay has another key.
func (s *Signer) Publisher(next outbox.Publisher) outbox.Publisher {
	return &publisher{signer: s, next: next}
}

type publisher struct {
	signer *Signer
	next   outbox.Publisher
}

// PublishBatch implements [outbox.Publisher].
func (p *publisher) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	for _, one := range batch {
		if err := p.signer.Sign(one.Topic, one.Message); err != nil {
			return slices.Repeat([]error{err}, len(batch))
		}
	}
	return p.next.PublishBatch(ctx, batch)
}
