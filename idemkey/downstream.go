package idemkey

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/sagamill/sagamill/internal/fieldhash"
)

// DownstreamKey derives the idempotency key for a call that a handler makes to
// another system, such as a payment provider: the same for every attempt of id,
// and another one for any other identity or step. step tells several calls of one
// handler apart. It is 64 characters of hex.
//
// The client's own key must never be passed on. It is unique within its scope only,
// so that two tenants with one key would collide at the provider, and one of
// them would be answered with the other's payment. Who knows a key could also claim
// it there first: so secret keeps the derived one from being guessed. It must be
// the same in all processes and must not change while records live, or a retry
// calls again under another key; 32 random bytes serve.
//
// Messages of a saga carry [StepKey] instead, and their handlers call others with
// consumer.Delivery.EffectKey.
func DownstreamKey(secret []byte, id Identity, step string) string {
	return fieldhash.Hex(hmac.New(sha256.New, secret), "idemkey downstream 1", id.Namespace, id.Scope, id.Key, step)
}
