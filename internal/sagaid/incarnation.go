package sagaid

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strings"
	"time"
)

// A Life is what names the incarnations of a key's records. All times are by the store's clock.
type Life struct {
	digest [sha256.Size]byte // of identity and TTL
	ttl    int64             // in milliseconds, at least 1
}

// NewLife returns the Life of records of the key that live for ttl.
func NewLife(namespace, scope, key string, ttl time.Duration) Life {
	l := Life{ttl: max(1, ttl.Milliseconds())}
	h := sha256.New()
	for _, part := range []string{"sagamill incarnation 2", namespace, scope, key} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part)))
		h.Write([]byte(part))
	}
	_ = binary.Write(h, binary.BigEndian, l.ttl)
	h.Sum(l.digest[:0])
	return l
}

// Offset returns by how many milliseconds the key's spans begin before those that are counted from 1970. Each key has
// another offset, so that not all keys change their spans at the same moment.
func (l Life) Offset() int64 {
	return int64(binary.BigEndian.Uint64(l.digest[:]) % uint64(l.ttl))
}

// Incarnation names a record that was created at a time. Records that were created a TTL apart, or that live for another
// TTL, have different names. A record that was lost and is created again, soon after, has the same name, unless a new span
// of a TTL has begun in between.
func (l Life) Incarnation(created time.Time) string {
	at := created.UnixMicro() + 1000*l.Offset()
	h := sha256.New()
	h.Write(l.digest[:])
	_ = binary.Write(h, binary.BigEndian, at/(1000*l.ttl))
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)))[:13]
}

// Prefix is the digest of identity and TTL, for a store that counts the spans itself.
func (l Life) Prefix() string {
	return strings.ToLower(base32.StdEncoding.EncodeToString(l.digest[:]))[:26]
}
