// Package rediskey names the Redis key of an identity, and checks the client of a store.
package rediskey

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sagamill/sagamill/idemkey"
)

// maxPrefix bounds a prefix, which every key repeats.
const maxPrefix = 128

// Of returns prefix followed by a digest of id in braces. The digest covers each part of id with its length,
// so that two different ids have two names. A cluster chooses the slot by the text in braces, the digest
// alone. The digest also keeps a caller's key, which may be business data, out of the key names.
func Of(prefix string, id idemkey.Identity) string {
	var encoded []byte
	for _, part := range []string{id.Namespace, id.Scope, id.Key} {
		encoded = binary.AppendUvarint(encoded, uint64(len(part)))
		encoded = append(encoded, part...)
	}
	sum := sha256.Sum256(encoded)
	return prefix + "{" + base64.RawURLEncoding.EncodeToString(sum[:]) + "}"
}

// CheckPrefix returns an error if prefix would move the hash tag, or is no text.
func CheckPrefix(prefix string) error {
	if prefix == "" || len(prefix) > maxPrefix || strings.ContainsFunc(prefix, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune("{}*?[]\\", r)
	}) {
		return fmt.Errorf("%q is not 1 to %d visible ASCII characters without {}*?[]\\", prefix, maxPrefix)
	}
	return nil
}

// CheckClient returns an error if client does not keep a context's deadline: a
// Redis that hangs would then hold a request for seconds.
func CheckClient(client redis.UniversalClient) error {
	var keeps bool
	switch c := client.(type) {
	case nil:
		return errors.New("client is nil")
	case *redis.Client:
		keeps = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		keeps = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return errors.New("a Ring moves keys to another server while one is down, so that a key has two owners")
	default:
		return nil // a wrapper of the service's own
	}
	if !keeps {
		return errors.New("the client's options need ContextTimeoutEnabled: without it no call keeps to its time")
	}
	return nil
}
