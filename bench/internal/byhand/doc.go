// Package byhand is the code that people write by hand instead of using this library. It has an outbox, a relay
// that polls it, and a consumer that remembers handled messages, on watermill-amqp and pgx. It checks only what
// is needed for an effect that happens once, as long as no failure is permanent.
package byhand
