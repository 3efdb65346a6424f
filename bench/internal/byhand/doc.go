// Package byhand is what people write by hand instead of using this library: an
// outbox, a relay that polls it and a consumer that remembers what it has handled,
// on watermill-amqp and pgx. It checks what is needed for an effect that happens
// once as long as nothing fails for good, and nothing more.
package byhand
