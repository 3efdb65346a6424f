// Package fieldhash makes one name of several fields, such as the key that another
// system is to know a step by.
package fieldhash

import (
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Hex writes each field to h with its length in front, so that no two lists of the
// same length come out alike, and returns the sum in hex. Keys that other systems
// have seen are made of it: it must never change.
func Hex(h hash.Hash, fields ...string) string {
	for _, field := range fields {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(field)))
		h.Write(size[:]) // a hash never fails
		h.Write([]byte(field))
	}
	return hex.EncodeToString(h.Sum(nil))
}
