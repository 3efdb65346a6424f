package record

import (
	"crypto/sha256"
	"encoding/hex"
)

// digestSize is how many bytes of a SHA-256 a digest has. In SQL it is
// encode(substring(sha256(…) FROM 1 FOR 16), 'hex').
const digestSize = 16

// DigestOf returns the digest that stands for content in the files of a run.
func DigestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:digestSize])
}
