// Package relaytest judges the work of a relay. A test notes in a [History] which messages it has committed
// and rolled back. A [Consumer] notes the arrivals at RabbitMQ. [Check] lists the contradictions.
package relaytest
