// Package cloudevents sends messages as CloudEvents 1.0 (https://github.com/cloudevents/spec), and reads them.
//
// [NewPublisher] goes around the relay's publisher. [Open] is consumer.Options.Open, and that of an orchestrator's
// Options.Consumer. The outbox stores the message itself: mode and source may change at any time. Config.CloudEvents of
// a service does all of this.
//
// # Attributes
//
//	id               the message's id
//	source           [Options].Source
//	type             the message's type
//	time             the message's timestamp
//	datacontenttype  the message's content type
//	sagamillkey      the step key, <key>:<step>[#<n>]
//	sagamillscope    the scope of the key
//	sagamillreplyto, sagamillformat, sagamillreplayed, sagamillsignature, causationid, correlationid, traceparent,
//	tracestate       the headers of that meaning, where the message has them
//
// A header cloudEvents_x of a message becomes the attribute x: so a writer sets subject, dataschema and extensions of
// its own.
//
// # Modes
//
// In binary mode the attributes are headers beside those of sagamill, and the payload is unchanged. Receivers that know
// nothing of CloudEvents go on as before: begin with this mode. In structured mode the payload is a document in JSON. A
// consumer without [Open] makes a dead letter of it, so every consumer needs Open before a publisher sends it.
//
// [Open] reads both modes, whichever a publisher uses, and leaves other messages alone. An attribute overrules the
// header of its meaning. Attributes are afterwards in the metadata, under cloudEvents_ and their name. A message's
// identity, its digest in the inbox and its parked copy are those of the data, not of the envelope.
//
// An event of a publisher without sagamill has no sagamillkey. consumer.Options.Identity names it: see [Identity].
package cloudevents
