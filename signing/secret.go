package signing

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
)

// A Secret is what a key is made of. It tells itself to nobody: neither printed, with any
// verb, nor logged, nor encoded, by itself or as a field of something, unexported ones included.
type Secret struct {
	// reveal is a function since nothing that prints a value can look into one: fmt asks
	// no method of an unexported field, and tools for debugging follow pointers.
	reveal func() []byte
}

// NewSecret returns a Secret of a copy of b: at least 32 random bytes, which whoever
// makes a [Signer] or a [Verifier] with it is told of otherwise.
func NewSecret(b []byte) Secret {
	b = bytes.Clone(b)
	return Secret{reveal: func() []byte { return b }}
}

// secretBytes are not to be changed.
func (s Secret) secretBytes() []byte {
	if s.reveal == nil {
		return nil
	}
	return s.reveal()
}

// opaque is what is told instead of a secret.
const opaque = "(secret)"

// String returns the same for every Secret. So do all other methods.
func (Secret) String() string { return opaque }

// Format implements [fmt.Formatter], for all verbs.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, opaque) }

// LogValue implements [slog.LogValuer].
func (Secret) LogValue() slog.Value { return slog.StringValue(opaque) }

// MarshalText implements [encoding.TextMarshaler], for JSON and XML, too.
func (Secret) MarshalText() ([]byte, error) { return []byte(opaque), nil }
