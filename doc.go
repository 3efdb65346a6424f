// Package sagamill runs a service of a saga from one [Config]: its tables, its queues, its relay, its steps, its
// orchestrator and its sweepers.
//
// [New] checks the Config and starts nothing. [Service.Idempotent] puts the idempotency middleware before a handler
// of the service, [Service.Handler] has health checks and metrics, and [Service.ListenAndServe] runs all of it until
// its context ends. A program without HTTP calls [Service.Run].
//
// Each part is also a package that can be used alone:
//
//   - idemkey: an HTTP request runs once for its Idempotency-Key; idemkey/idempg stores keys in PostgreSQL
//   - outbox: messages commit with the caller's transaction; a relay publishes them
//   - consumer: a step of a saga runs once, whatever the broker delivers twice
//   - saga: sagas that an orchestrator leads from step to step
//   - rabbitmq, inproc: brokers; any Pub/Sub of watermill works as well
//   - operator: what a person does: dead letters, redrive, verbs on sagas
//   - topology: which messages a service takes and sends, as data and as an AsyncAPI document
//   - signing, telemetry, migrations, sagatest: signatures, metrics and traces, tables, tests
//
// The files of this package: config.go (what is configured), service.go (what New builds), broker.go (the broker),
// prepare.go (tables and queues, before the start), run.go (start and stop), http.go (the handlers).
package sagamill
