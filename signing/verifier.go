package signing

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Why a message is not verified, besides [ErrExpired].
var (
	ErrMissing    = errors.New("signing: the signature is missing")
	ErrUnknownKey = errors.New("signing: the signature is of an unknown key")
	ErrInvalid    = errors.New("signing: the signature is invalid")
	ErrNotAllowed = errors.New("signing: the producer is not allowed on the topic")
)

// A Verifier knows the keys of producers, and which of them may send to which
// topic. Any number of goroutines may use it.
type Verifier struct {
	machines map[string]*machine // by key id
	allowed  map[string][]string // producers by topic
}

// NewVerifier returns a Verifier of the messages that are signed with one of keys. A
// producer may have several, as it does while one replaces another. allowed has for
// each topic the producers that may send to it: a topic that it does not have is
// closed to all. An error says which key cannot be used, or that there is none.
func NewVerifier(keys []Key, allowed map[string][]string) (*Verifier, error) {
	if len(keys) == 0 {
		return nil, errors.New("signing: NewVerifier needs at least one key")
	}
	v := &Verifier{machines: make(map[string]*machine, len(keys)), allowed: make(map[string][]string, len(allowed))}
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
	for topic, producers := range allowed {
		v.allowed[topic] = slices.Clone(producers)
	}
	return v, nil
}

// Verify returns nil if msg was signed for topic with a key that v has, and by a
// producer that is allowed there. Otherwise the error is an [ErrMissing],
// [ErrUnknownKey], [ErrExpired], [ErrInvalid] or [ErrNotAllowed], and nothing that msg
// says is to be believed. It changes nothing, and fits consumer.Options.Verify.
func (v *Verifier) Verify(topic string, msg *message.Message) error {
	value := msg.Metadata[Header]
	if value == "" {
		return ErrMissing
	}
	id, mac, ok := parse(value)
	if !ok {
		return fmt.Errorf("%w: header %s is malformed", ErrInvalid, Header)
	}
	m := v.machines[id]
	switch {
	case m == nil:
		return fmt.Errorf("%w: %s", ErrUnknownKey, id)
	case m.expired():
		return fmt.Errorf("%w: %s", ErrExpired, id)
	case !m.made(mac[:], topic, msg):
		return fmt.Errorf("%w: under %v", ErrInvalid, m.Key)
	case !slices.Contains(v.allowed[topic], m.Producer):
		return fmt.Errorf("%w: %v", ErrNotAllowed, m.Key)
	}
	return nil
}

// made reports whether mac is m's of msg. How long that takes tells nothing of the
// right one.
func (m *machine) made(mac []byte, topic string, msg *message.Message) bool {
	p := m.parts.Get().(*part)
	defer m.parts.Put(p)
	p.sign(m.ID, topic, msg)
	return hmac.Equal(p.sum[:], mac)
}
