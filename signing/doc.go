// Package signing signs messages on their way out and verifies them on their way
// in, so that who can write to a broker, or change what it holds, cannot forge a
// message of a service.
//
// A [Signer] is put around the relay's publisher, and a [Verifier] into
// consumer.Options.Verify. The outbox stores no signature: a relay signs with the key
// that it has when it publishes, also what was stored under another one and what
// is published again.
//
// # How to begin
//
//  1. A [Key] for each producer, its [Secret] of 32 random bytes or more.
//  2. [NewSigner], and [Signer.Publisher] around the publisher that outbox.NewRelay gets.
//  3. [NewVerifier], with all keys and who may send to which topic; its [Verifier.Verify] is consumer.Options.Verify.
//  4. Signers first: a consumer that verifies makes a dead letter of what is not signed.
//
// The package's Example is both sides.
//
// # What is covered
//
// The signature is an HMAC-SHA256 under the producer's key of
//
//   - the version of the signature and the id of the key,
//   - the topic, the message id and the SHA-256 of the payload,
//   - the type, the step key, the scope, the correlation id, the causation id, the
//     timestamp and the content type, a missing one like an empty one,
//   - every header whose name begins with x-sagamill-, but the signature itself: the
//     version of the message format and where a participant's replies go are among
//     them.
//
// Each is preceded by its length, so that no two different messages have one input.
//
// Not covered are traceparent and tracestate, which may be changed on the way, and
// all other headers: brokers and bridges add some. A handler that is to be sure
// reads the payload.
//
// # What it is worth
//
// A message that verifies was sent by somebody with the key, to that topic, as it
// is. It may have been sent before: a message that is repeated is absorbed by the
// inbox, like any redelivery.
//
// The verifier says which producer may send to which topic, and, where one topic takes
// messages of several, which types and steps are whose: see [Sender]. Such a topic is that to
// which the participants of an orchestrated saga reply. Without more, one of them that is broken into could
// answer for another one's step.
//
// The key is shared: who can verify can also sign. A consumer that is broken into
// can forge messages of every producer whose key it has. Give each producer a key
// of its own, each environment other keys, and no consumer a key that it does not
// need. The payload is not encrypted.
//
// # Rotation
//
// A key is replaced in three steps, without losing a message: every verifier learns
// the new key; the signer uses it; when no message signed with the old key is under
// way any more, verifiers forget the old one. A message that was parked, or is a dead
// letter of another reason, was verified when it arrived, and runs without the key.
package signing
