// Package relaytest judges what a relay has done: a test notes in a [History] what it
// has committed and rolled back, a [Consumer] notes what arrives at RabbitMQ, and
// [Check] says what of it must not be.
package relaytest
