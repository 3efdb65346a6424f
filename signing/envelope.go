package signing

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/outbox"
)

// Header is the name of the header that holds the signature:
//
//	v1;<key id>;<HMAC, 43 characters of base64url without padding>
const Header = outbox.HeaderSignature

// version is the version of the signature: the fields that it covers, and how it is computed.
const version = "v1"

// label separates these signatures from other uses of the same secret.
const label = "sagamill message signature " + version

// ownPrefix is the prefix of the headers that have a meaning to this project, besides those in covered.
const ownPrefix = "x-sagamill-"

// covered are the metadata that a signature covers, in this order, present or not.
var covered = [...]string{
	outbox.PropertyType, outbox.HeaderKey, outbox.HeaderScope, outbox.PropertyCorrelation, outbox.HeaderCausation,
	outbox.PropertyTimestamp, outbox.PropertyContentType,
}

// encoding is strict: it decodes only text that it would write itself.
var encoding = base64.RawURLEncoding.Strict()

// encodedLen is the number of characters of an encoded HMAC.
const encodedLen = (sha256.Size*8 + 5) / 6

// signMessage computes the HMAC of msg into p.sum.
func (p *part) signMessage(keyID, topic string, msg *message.Message) {
	body := sha256.Sum256(msg.Payload)
	p.input = p.input[:0]
	p.addField(label)
	p.addField(keyID)
	p.addField(topic)
	p.addField(msg.UUID)
	for _, name := range covered {
		p.addField(msg.Metadata[name])
	}
	p.names = p.names[:0]
	for name := range msg.Metadata {
		if strings.HasPrefix(name, ownPrefix) && name != Header {
			p.names = append(p.names, name)
		}
	}
	slices.Sort(p.names)
	for _, name := range p.names {
		p.addField(name)
		p.addField(msg.Metadata[name])
	}
	clear(p.names) // a machine must not keep a message alive
	p.input = append(p.input, body[:]...)
	p.mac.Reset()
	p.mac.Write(p.input)
	p.mac.Sum(p.sum[:0])
}

// addField appends s to the input, behind its length. The input can be read in one way only: the number of
// fields before the headers is fixed, and so is the length of the digest behind them.
func (p *part) addField(s string) {
	p.input = binary.BigEndian.AppendUint64(p.input, uint64(len(s)))
	p.input = append(p.input, s...)
}

// headerValue returns the value of [Header] for p.sum. It uses p.input.
func (p *part) headerValue(keyID string) string {
	p.input = append(p.input[:0], version...)
	p.input = append(p.input, ';')
	p.input = append(p.input, keyID...)
	p.input = append(p.input, ';')
	return string(encoding.AppendEncode(p.input, p.sum[:]))
}

// parseSignature splits the value of [Header]. It accepts exactly the values that headerValue returns, for
// any key id.
func parseSignature(value string) (keyID string, mac [sha256.Size]byte, ok bool) {
	rest, ok := strings.CutPrefix(value, version+";")
	if !ok {
		return "", mac, false
	}
	keyID, encoded, ok := strings.Cut(rest, ";")
	if !ok || !isValidID(keyID) || len(encoded) != encodedLen {
		return "", mac, false
	}
	// The decoder skips line breaks: a text with one has too few bytes.
	var raw [encodedLen]byte
	n, err := encoding.Decode(mac[:], append(raw[:0], encoded...))
	return keyID, mac, err == nil && n == len(mac)
}
