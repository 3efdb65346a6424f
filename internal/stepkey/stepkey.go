// Package stepkey is the grammar of the step key, the value of the header
// x-idempotency-key:
//
//	<key>:<step>[#<n>]
//
// key is the client's idempotency key, 1–255 printable ASCII characters, and may
// itself contain spaces and colons. step is [a-z0-9][a-z0-9-]{0,62} and n, which tells
// several messages of one saga to one step apart, is [A-Za-z0-9._-]{1,64}, with room for an incarnation before it.
// They hold no colon, so the last colon of a step key is the one before the step.
//
// A client may use a key again once the record of its request has expired. The
// incarnation of that record tells the sagas apart, and is the beginning of n, between
// two dots: see [JoinN].
//
// A step's identity is the tuple, never the joined string: two tuples stay apart even if their joined strings are equal
// as part of something longer.
//
// testdata/stepkeys.json has step keys inside and outside the grammar. Readers of step keys in other languages are
// tested against it, too.
package stepkey

import (
	"errors"
	"fmt"
	"strings"
)

// The limits of the three parts, in bytes.
const (
	MaxKey  = 255
	MaxStep = 63
	MaxN    = 64 // of the message's own n, without an incarnation

	MaxIncarnation = 24
)

// ErrMalformed reports a key, step or n outside the grammar.
var ErrMalformed = errors.New("malformed step key")

// A Key is the identity of one message to one step of one saga, within a scope.
type Key struct {
	Key  string // the client's idempotency key
	Step string // the step that is to run
	N    string // "" if the saga sends one message to the step
}

// Parse splits s. Its error is an [ErrMalformed] with the reason. It does not repeat s, which may hold anything.
func Parse(s string) (Key, error) {
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 {
		return Key{}, fmt.Errorf("%w: no colon before the step", ErrMalformed)
	}
	k := Key{Key: s[:colon], Step: s[colon+1:]}
	if hash := strings.IndexByte(k.Step, '#'); hash >= 0 {
		k.Step, k.N = k.Step[:hash], k.Step[hash+1:]
		if k.N == "" {
			return Key{}, fmt.Errorf("%w: nothing after the number sign", ErrMalformed)
		}
	}
	return k, k.Check()
}

// String joins the parts. It is meaningful only where [Key.Check] returns nil.
func (k Key) String() string {
	if k.N == "" {
		return k.Key + ":" + k.Step
	}
	return k.Key + ":" + k.Step + "#" + k.N
}

// Check returns an [ErrMalformed] naming the part that is outside the grammar.
func (k Key) Check() error {
	if err := CheckKey(k.Key); err != nil {
		return err
	}
	if err := CheckStep(k.Step); err != nil {
		return err
	}
	if !withinN(k.N) {
		return fmt.Errorf("%w: n must be 1 to %d of A-Z a-z 0-9 . _ -", ErrMalformed, MaxN)
	}
	return nil
}

// withinN reports whether n has no more than MaxN characters, those of an incarnation not counted.
func withinN(n string) bool {
	own := n
	if len(n) > MaxN {
		incarnation, rest := SplitN(n)
		if incarnation != "" && CheckIncarnation(incarnation) == nil {
			own = rest
		}
	}
	return len(own) <= MaxN && !strings.ContainsFunc(n, outsideN)
}

// JoinN returns the n of a message: its own n with the incarnation of its saga before it, as
// ".<incarnation>[.<n>]". Without an incarnation it is the own n.
func JoinN(incarnation, own string) string {
	switch {
	case incarnation == "":
		return own
	case own == "":
		return "." + incarnation
	}
	return "." + incarnation + "." + own
}

// SplitN reverses [JoinN]. An n that has no incarnation is the message's own.
func SplitN(n string) (incarnation, own string) {
	rest, ok := strings.CutPrefix(n, ".")
	if !ok {
		return "", n
	}
	incarnation, own, _ = strings.Cut(rest, ".")
	if JoinN(incarnation, own) != n {
		return "", n // ".", "..x" or ".x.": JoinN makes none of them
	}
	return incarnation, own
}

// CheckIncarnation returns an [ErrMalformed] unless incarnation may be the beginning of an n.
func CheckIncarnation(incarnation string) error {
	if incarnation == "" || len(incarnation) > MaxIncarnation || strings.ContainsFunc(incarnation, outsideIncarnation) {
		return fmt.Errorf("%w: incarnation must be 1 to %d of A-Z a-z 0-9 _", ErrMalformed, MaxIncarnation)
	}
	return nil
}

// CheckKey returns an [ErrMalformed] unless key is 1–255 printable ASCII characters, 0x20 to 0x7e, the space among
// them. A quoted string of HTTP and an AMQP short string can hold such a key, and PostgreSQL can index it.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("%w: key must be 1 to %d characters, not %d", ErrMalformed, MaxKey, len(key))
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return fmt.Errorf("%w: key must be printable ASCII (byte %d is not)", ErrMalformed, i)
		}
	}
	return nil
}

// CheckStep returns an [ErrMalformed] unless step is a step's name.
func CheckStep(step string) error {
	if step == "" {
		return fmt.Errorf("%w: step is empty", ErrMalformed)
	}
	if len(step) > MaxStep || step[0] == '-' || strings.ContainsFunc(step, outsideStep) {
		return fmt.Errorf("%w: step must be 1 to %d of a-z 0-9 -, not beginning with -", ErrMalformed, MaxStep)
	}
	return nil
}

func outsideStep(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
}

func outsideN(r rune) bool {
	return outsideStep(r) && !(r >= 'A' && r <= 'Z' || r == '.' || r == '_')
}

func outsideIncarnation(r rune) bool { return r == '.' || r == '-' || outsideN(r) }
