package signing

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"hash"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sagamill/sagamill/internal/cleantext"
)

// The limits of a key's parts, in bytes.
const (
	MaxID       = 32
	MaxProducer = 128
	MinSecret   = 32
)

// A Key is a secret that a producer shares with the verifiers of its messages.
type Key struct {
	ID       string // names the key in each signature; 1 to 32 of a-z 0-9 -, never used for another secret
	Producer string // the service whose messages it signs; 1 to 128 printable bytes
	Secret   Secret `json:"-"`

	// NotAfter is the time from which verifiers accept no message with the key, even if it was signed earlier,
	// and signers sign no more. Each process goes by its clock. Leave time for messages that wait in queues.
	// Default: never.
	NotAfter time.Time
}

// Format implements [fmt.Formatter], for all verbs.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "key %s of %s", k.ID, k.Producer) }

// LogValue implements [slog.LogValuer].
func (k Key) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(k)) }

func (k Key) checkKey() error {
	switch {
	case !isValidID(k.ID):
		return fmt.Errorf("a key's ID must be 1 to %d of a-z 0-9 -", MaxID)
	case k.Producer == "" || len(k.Producer) > MaxProducer || !cleantext.Printable(k.Producer):
		return fmt.Errorf("key %s: Producer must be 1 to %d printable bytes", k.ID, MaxProducer)
	case len(k.Secret.secretBytes()) < MinSecret:
		return fmt.Errorf("key %s: Secret has %d bytes, at least %d are needed", k.ID, len(k.Secret.secretBytes()), MinSecret)
	}
	return nil
}

func isValidID(id string) bool {
	return id != "" && len(id) <= MaxID && !strings.ContainsFunc(id, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	})
}

// sameSecret reports whether k and other make the same signatures. HMAC pads a short secret with zeros and
// hashes a long one, so different secrets can be equivalent.
func (k *Key) sameSecret(other *Key) bool {
	return bytes.Equal(k.markOfKey(), other.markOfKey())
}

func (k *Key) markOfKey() []byte {
	mac := hmac.New(sha256.New, k.Secret.secretBytes())
	mac.Write([]byte("sagamill signing: the same secret?"))
	return mac.Sum(nil)
}

// hasExpired reports whether k must not be used any more.
func (k *Key) hasExpired() bool { return !k.NotAfter.IsZero() && !time.Now().Before(k.NotAfter) }

// A machine computes the signatures of one key. It reuses its parts, because setting up an HMAC costs more
// than computing one over a message.
type machine struct {
	Key
	parts sync.Pool
}

// A part is the state of one computation. Concurrent computations use different parts.
type part struct {
	mac   hash.Hash
	input []byte
	names []string
	sum   [sha256.Size]byte
}

// newMachine returns the machine of k.
func newMachine(k Key) (*machine, error) {
	if err := k.checkKey(); err != nil {
		return nil, err
	}
	m := &machine{Key: k}
	m.parts.New = func() any { return &part{mac: hmac.New(sha256.New, k.Secret.secretBytes())} }
	return m, nil
}
