// Package signing signs messages on their way out and verifies them on their way in. Write access to a broker
// is then not enough to forge a message of a service.
//
// A [Signer] goes around the relay's publisher, and a [Verifier] into consumer.Options.Verify. The outbox
// stores no signature: a relay signs with its key at the time of publishing, also a message that was stored
// earlier and one that is published again.
//
// # How to begin
//
//  1. A [Key] for each producer, its [Secret] of 32 random bytes or more.
//  2. [NewSigner], and [Signer.Publisher] around the publisher that outbox.NewRelay gets.
//  3. [NewVerifier], with all keys and who may send to which topic; its [Verifier.Verify] is consumer.Options.Verify.
//  4. Signers first: a consumer that verifies makes a dead letter of what is not signed.
//
// The Example of this package shows both sides.
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
// The length of each part stands before it, so that no two different messages have the same input.
//
// The signature does not cover traceparent and tracestate, which may change on the way, nor any other header:
// brokers and bridges add some. A handler must take what it relies on from the payload.
//
// # What it is worth
//
// A message that verifies was sent by a holder of the key, to that topic, and is unchanged. It may be a
// repetition: the inbox absorbs it, like any redelivery.
//
// The verifier says which producer may send to which topic. Where several producers send to one topic, it
// also says which types and steps belong to which: see [Sender]. An example is the topic to which the
// participants of an orchestrated saga reply. Without types and steps, a participant that is broken into
// could answer for the step of another.
//
// The key is shared: a verifier can also sign. An attacker in a consumer can forge messages of every producer
// whose key it has. Give each producer one key that no other has, each environment different keys, and no
// consumer a key that it does not need. The payload is not encrypted.
//
// # Rotation
//
// A key is replaced in three steps, without losing a message. First every verifier learns the new key. Then
// the signer uses it. Verifiers forget the old key when no message signed with it is under way any more. A
// message that was parked, or is a dead letter for another reason, was verified on arrival, and runs without
// the key.
package signing
