package signing

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
)

// A Secret is the secret of a key. It does not show itself in printing, with any verb, in logs or in
// encodings, also as an unexported field of another value.
type Secret struct {
	// reveal is a function because printing cannot look into one. fmt calls no method of an unexported field,
	// and debugging tools follow pointers.
	reveal func() []byte
}

// NewSecret returns a Secret with a copy of b, which must have at least 32 random bytes: [NewSigner] and
// [NewVerifier] refuse a shorter one.
func NewSecret(b []byte) Secret {
	b = bytes.Clone(b)
	return Secret{reveal: func() []byte { return b }}
}

// secretBytes returns the secret. The caller must not change it.
func (s Secret) secretBytes() []byte {
	if s.reveal == nil {
		return nil
	}
	return s.reveal()
}

// opaque is printed in place of a secret.
const opaque = "(secret)"

// String returns the same text for every Secret. So do all other methods.
func (Secret) String() string { return opaque }

// Format implements [fmt.Formatter], for all verbs.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, opaque) }

// LogValue implements [slog.LogValuer].
func (Secret) LogValue() slog.Value { return slog.StringValue(opaque) }

// MarshalText implements [encoding.TextMarshaler], for JSON and XML, too.
func (Secret) MarshalText() ([]byte, error) { return []byte(opaque), nil }
