// Package topology describes the messages that a service receives and sends, and makes an AsyncAPI document from that.
//
// [Describe] returns a [Service], which is the description of a service, written and read as JSON. A service of package
// sagamill serves it at /topology. [EncodeAsyncAPI] makes a document of one or several services, which the command
// sagamill topology asyncapi prints.
//
// Describe reads from steps and sagas what they receive and reply, and which commands they send. It cannot know what a
// handler emits: list that in consumer.Step.Emits, and everything else that the service sends in [Options].Emits.
//
// The files: describe.go (the description), schema.go (JSON Schemas of Go types), asyncapi.go (the document),
// asyncapi_parts.go (its channels and messages).
package topology
