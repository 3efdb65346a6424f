package signing

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// The reasons why a message does not verify, besides [ErrExpired].
var (
	ErrMissing    = errors.New("signing: the signature is missing")
	ErrUnknownKey = errors.New("signing: the signature is of an unknown key")
	ErrInvalid    = errors.New("signing: the signature is invalid")
	ErrNotAllowed = errors.New("signing: the producer is not allowed to send that")
)

// A Sender is a producer that may send to a topic: all messages, or only some types and steps.
type Sender struct {
	Producer string // of its keys, however many it has

	// Types are the types of the messages that it may send there. On the topic for the replies to an
	// orchestrated saga, allow saga.TypeReply alone: the topic also takes orders to compensate. Default: all.
	Types []string

	// Steps are the steps that the messages' step keys may name. On a topic for replies, that is the step that
	// the reply is about, if the orchestrator has saga.Options.NamedReplies. On other topics, handlers are
	// chosen by topic and type, and the step does not matter. Default: all.
	Steps []string
}

// maySend reports whether the sender may send such a message. A message without a step matches no step of
// Steps.
func (s *Sender) maySend(typ, step string) bool {
	return (len(s.Types) == 0 || slices.Contains(s.Types, typ)) && (len(s.Steps) == 0 || slices.Contains(s.Steps, step))
}

// A Verifier knows the keys of producers, and which messages each may send to which topic. Any number of
// goroutines may use it.
type Verifier struct {
	machines map[string]*machine            // by key id
	allowed  map[string]map[string][]Sender // by topic and producer
}

// NewVerifier returns a Verifier of messages that are signed with one of keys. A producer may have several
// keys, as while one replaces another. allowed lists for each topic its senders: no producer may send to a
// topic that is missing from it. A producer that is listed twice for a topic may send what either entry
// allows. An error says which key or sender is invalid, or that there is no key.
func NewVerifier(keys []Key, allowed map[string][]Sender) (*Verifier, error) {
	if len(keys) == 0 {
		return nil, errors.New("signing: NewVerifier needs at least one key")
	}
	v := &Verifier{machines: make(map[string]*machine, len(keys)), allowed: make(map[string]map[string][]Sender, len(allowed))}
	for _, k := range keys {
		m, err := newMachine(k)
		if err == nil && v.machines[k.ID] != nil {
			err = fmt.Errorf("key %s is given twice", k.ID)
		}
		for _, other := range v.machines {
			if err == nil && other.sameSecret(&k) { // one could sign as the other
				err = fmt.Errorf("keys %s and %s have the same secret", min(k.ID, other.ID), max(k.ID, other.ID))
			}
		}
		if err != nil {
			return nil, fmt.Errorf("signing: %w", err)
		}
		v.machines[k.ID] = m
	}
	for topic, senders := range allowed {
		if err := v.allowSenders(topic, senders); err != nil {
			return nil, fmt.Errorf("signing: topic %s: %w", topic, err)
		}
	}
	return v, nil
}

// allowSenders copies senders. It refuses a step that no message can name, because otherwise only refused
// messages would show the mistake.
func (v *Verifier) allowSenders(topic string, senders []Sender) error {
	v.allowed[topic] = make(map[string][]Sender, len(senders))
	for _, s := range senders {
		if s.Producer == "" {
			return errors.New("a Sender needs a Producer")
		}
		for _, step := range s.Steps {
			if err := stepkey.CheckStep(step); err != nil {
				return fmt.Errorf("sender %s: Steps: %w", s.Producer, err)
			}
		}
		s.Types, s.Steps = slices.Clone(s.Types), slices.Clone(s.Steps)
		v.allowed[topic][s.Producer] = append(v.allowed[topic][s.Producer], s)
	}
	return nil
}

// Verify returns nil if msg was signed for topic with a key of v, and its producer may send it there.
// Otherwise the error is an [ErrMissing], [ErrUnknownKey], [ErrExpired], [ErrInvalid] or [ErrNotAllowed];
// trust nothing in msg then. Verify changes nothing, and fits consumer.Options.Verify.
func (v *Verifier) Verify(topic string, msg *message.Message) error {
	value := msg.Metadata[Header]
	if value == "" {
		return ErrMissing
	}
	id, mac, ok := parseSignature(value)
	if !ok {
		return fmt.Errorf("%w: header %s is malformed", ErrInvalid, Header)
	}
	m := v.machines[id]
	switch {
	case m == nil:
		return fmt.Errorf("%w: %s", ErrUnknownKey, id)
	case m.hasExpired():
		return fmt.Errorf("%w: %s", ErrExpired, id)
	case !m.hasMade(mac[:], topic, msg):
		return fmt.Errorf("%w: under %v", ErrInvalid, m.Key)
	}
	return v.permitMessage(m, topic, msg)
}

// permitMessage returns an [ErrNotAllowed] unless m's producer may send msg to topic. It looks only at fields
// that the signature covers.
func (v *Verifier) permitMessage(m *machine, topic string, msg *message.Message) error {
	typ := msg.Metadata[outbox.PropertyType]
	key, err := stepkey.Parse(msg.Metadata[outbox.HeaderKey])
	if err != nil {
		key.Step = "" // a key that does not parse names no step
	}
	for _, s := range v.allowed[topic][m.Producer] {
		if s.maySend(typ, key.Step) {
			return nil
		}
	}
	return fmt.Errorf("%w: %v, to topic %s: type %.100q, step %q", ErrNotAllowed, m.Key, topic, typ, key.Step)
}

// hasMade reports whether mac is m's HMAC of msg. Its time does not depend on how much of mac is right.
func (m *machine) hasMade(mac []byte, topic string, msg *message.Message) bool {
	p := m.parts.Get().(*part)
	defer m.parts.Put(p)
	p.signMessage(m.ID, topic, msg)
	return hmac.Equal(p.sum[:], mac)
}
