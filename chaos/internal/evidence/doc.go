// Package evidence collects what a chaos run is judged by, and adds to the trouble from
// where no service expects it: messages that nobody has sent, and ones that were sent before.
//
// # What is authoritative
//
// The database. [InstallTriggers] lets each statement on a service's table leave a
// record.Change in its own transaction, so that what was written twice, or written and undone,
// is there to be seen, and what was rolled back is not. [DumpTables] reads that, the outboxes and the
// tables in one snapshot. The broker is asked for nothing but how much is in its queues.
//
// # What is read while faults strike
//
// [Sampler] looks at one snapshot of all services' tables for what must be true at any moment. A
// database or broker that is away is a sample with an error, and never one of a wrong balance.
//
// # What is published
//
// [Injector] publishes poison, each once confirmed, and duplicates of messages that were
// delivered before. [ReplayHistory] publishes every message of a run again. The properties, headers and
// bytes of both are those with which a relay publishes, the message id included.
package evidence
