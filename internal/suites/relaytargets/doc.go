// Package relaytargets shows the relay on brokers other than RabbitMQ, through
// their watermill publishers and subscribers: gochannel, Redis Streams and NATS
// JetStream, as docs/other-brokers.md says to set them up.
//
// It is a separate module, because users of the library must not get the brokers' modules among their
// requirements. It holds nothing but tests.
package relaytargets
