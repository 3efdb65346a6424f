// Package consumer runs the steps of sagas. A step is a local transaction that a message starts. It takes effect once,
// regardless of how often its message is delivered.
//
// # How to begin
//
//  1. migrations.Up makes the tables, in a schema of the service.
//  2. Write the steps: a [Step] with [On] for its action and, if it can be undone, its compensation.
//  3. [New], with Options.Wake of the relay that publishes what they emit. Declare the queues of [Consumer.Topics].
//  4. [Consumer.Run], in any number of processes.
//  5. [NewSweeper] and [Sweeper.Run], or the inbox grows for ever.
//
// The package's Example is a whole service.
//
// # The stages of a delivery
//
// A delivery goes through four stages. Each is a type with a file, or with some files of its name. A stage calls
// later stages only. consumer.go makes them; options.go and step*.go are what a user sets.
//
// Route (route.go): the router puts a delivery on the board, by headers that are not verified yet. A lane takes a load
// of deliveries from the board. The deliveries of one scope and key are in one lane at a time, in their order.
//
// Receive (receive.go): the receiver verifies a message and reads it. It gives a received message, or a rejection,
// which becomes a dead letter. The lane does this, not the subscription, so that a slow Verify delays one lane only.
//
// Execute (execute*.go): the executor runs a received message as an attempt, alone or in a batch. It claims the row of
// the inbox, asks the state machine, enters the handler, and rolls back to a savepoint if the handler fails.
//
// Settle (settle*.go): the settler records the outcome in the same transaction: success, a parked copy or a dead
// letter. It sends COMMIT with all that the handlers have queued and emitted, checks the answer, and acks.
//
// Beside that way:
//
// Retry (retry.go): the retrier takes parked messages that are due, reads them again, and hands them to the executor.
//
// Effect (effect*.go): effects makes calls to other systems outside the transaction, between two commits.
//
// Retention (retention.go): the [Sweeper] removes the rows of steps that ended long ago.
//
// Outage (outage.go): the watch notices that the database is lost, and hands the queues over to other processes if the
// subscriber is a [Pauser]. Deliveries that have not begun are dropped. Those that have begun are old copies.
//
// Observe (observe*.go): the reporter tells the Observer, the counters and the log. sql.go has the statements.
//
// # The inbox
//
// The table inbox is authoritative. It has one row for each step of each saga, named by (scope, key, step, n). A row is
// moved only under its lock, in the transaction that also holds the step's effects and the messages it emits. A
// delivery is acked after that transaction has committed.
//
//	row in the inbox          an action arrives             a compensation arrives
//	absent                    run → done                    → void: nothing to undo
//	done                      duplicate                     run → compensated
//	refused                   duplicate                     → void: it did nothing
//	void                      superseded                    duplicate
//	compensated               superseded                    duplicate
//	retrying (parked)         duplicate: the copy wins      waits its turn, or cancels it → void
//	dead                      duplicate: the copy wins      dead letter, or → void
//	open (attempt counted)    run → done                    waits for the action; void if no attempt was counted
//	undoing, undo-dead        duplicate                     duplicate: the copy wins
//
// The same identity with another payload is a dead letter (key-reused).
//
// # Failures
//
// A handler fails by an error, a panic or its deadline. Its database work is then rolled back and its message parked in
// the same transaction. The delivery is acked, so that it blocks no other and does not loop. Parked messages run again
// from the database. After MaxAttempts entries into the handler, or at once for a [Terminal] error, the parked message
// becomes a dead letter: it keeps reason, error, stack, attempts and the message as it came.
//
// A message that cannot be read (no key, no scope, unknown type, undecodable) is a dead letter at once, and never an
// error. So is one that Options.Verify refuses, before anything in it is believed.
//
// Another service may wait for the answer to such a message, or to a compensation that found nothing to undo.
// [Step.Unhandled] emits an answer in the transaction that records such an end.
//
// # Batches
//
// Up to BatchSize deliveries, with BatchBytes of payload, share a transaction: one claim, one commit. A failed one
// rolls back to a savepoint and is parked; the others go on. If the transaction is lost, its messages are executed one
// by one. Statements that a handler sends by [Delivery.Queue] travel with COMMIT.
//
// Handlers run one after the other, in ascending order of scope and key, and those of one saga in the order of its
// deliveries. So handlers that lock only rows of their saga, in their transaction, cannot deadlock with those of
// another batch, in any process. Queued statements are executed in the same order, but after all handlers: if one step
// locks a row at once, another should not lock it by a queued statement. If a saga has several messages in a batch,
// the statements that one handler has queued are executed before the next handler is entered.
//
// # After a crash
//
//   - Before COMMIT: nothing has happened; the broker redelivers.
//   - After COMMIT, before the ack: the broker redelivers and the row says done; the delivery is acked without running.
//   - COMMIT sent, answer lost: the message is treated as if it had been redelivered, and the row tells.
//   - In the handler: the broker marks the redelivery, so the attempt is counted in a separate commit before the
//     handler is entered. A message that kills the process cannot do so more than MaxAttempts times.
//
// # Effects outside the database
//
// Work that a handler does outside its transaction may be done again. A call to another system is an [Effect] instead.
// Before the call is made, the row is retrying or undoing and the message is parked, with the attempt counted and in
// doubt. So no row is locked meanwhile, and a process that dies leaves all that behind. The next attempt repeats the
// call under the same key, or asks first whether it was made. The result of an attempt is recorded only if no other
// attempt has begun since.
package consumer
