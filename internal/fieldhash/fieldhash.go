// Package fieldhash makes one name of several fields, such as the key under which another system knows a
// step.
package fieldhash

import (
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Hex writes each field to h, with its length in front, and returns the sum in hex. The lengths keep two
// lists of the same number of fields apart. Other systems have stored keys that Hex made: it must never
// change.
func Hex(h hash.Hash, fields ...string) string {
	for _, field := range fields {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(field)))
		h.Write(size[:]) // a hash never fails
		h.Write([]byte(field))
	}
	return hex.EncodeToString(h.Sum(nil))
}
