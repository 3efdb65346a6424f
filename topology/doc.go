// Package topology describes which messages a service takes and sends, and makes an AsyncAPI document of that.
//
// [Describe] returns the description of a service as data: a [Service], which is written and read as JSON. A service
// that package sagamill runs has it at /topology. The command sagamill topology asyncapi prints the document of one or
// several services, by [EncodeAsyncAPI].
//
// Steps and sagas tell what they take and answer, and which commands they send. What a handler emits, nobody can know
// before it runs: list it in consumer.Step.Emits. [Options].Emits is for what the service sends otherwise.
//
// The files: describe.go (the description), schema.go (JSON Schemas of Go types), asyncapi.go (the document),
// asyncapi_parts.go (its channels and messages).
package topology
