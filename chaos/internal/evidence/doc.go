// Package evidence collects the evidence by which a chaos run is judged. It also injects messages that no
// service has sent, and publishes old messages again.
//
// # What is authoritative
//
// The database. [InstallTriggers] makes each statement on a service's table record a record.Change in its own
// transaction. So a double write, or a write that was undone later, is visible, and a rolled-back one is not.
// [DumpTables] reads the changes, the outboxes and the tables in one snapshot. The broker is asked only for the
// depths of its queues.
//
// # What is read while faults strike
//
// [Sampler] checks, in one snapshot of all services' tables, invariants that hold at any moment. If a database
// or broker is down, the sample has an error, never a false contradiction.
//
// # What is published
//
// [Injector] publishes poison, each until it is confirmed, and duplicates of messages that were delivered
// before. [ReplayHistory] publishes every message of a run again. Duplicates and replays have the properties,
// headers and bytes of a relay's message, including the message id.
package evidence
