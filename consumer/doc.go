// Package consumer runs the steps of sagas: local transactions that a message
// sets off, each of which takes effect once however often the message arrives.
//
// # How to begin
//
//  1. migrations.Up makes the tables, in a schema of the service's own.
//  2. Write the steps: a [Step] with [On] for its action and, if it can be undone, its compensation.
//  3. [New], with Options.Wake of the relay that publishes what they emit. Declare the queues of [Consumer.Topics].
//  4. [Consumer.Run], in any number of processes.
//  5. [NewSweeper] and [Sweeper.Run], or the inbox grows for ever.
//
// The package's Example is a whole service.
//
// # The inbox
//
// What is authoritative: the table inbox. It has one row for each step of each
// saga, named by (scope, key, step, n), and the row is only ever moved under
// its lock, in the transaction that also holds the step's effects and the
// messages it emits. A delivery is acked after that transaction has committed.
//
//	row in the inbox          an action arrives             a compensation arrives
//	absent                    run → done                    → void: nothing to undo
//	done                      duplicate                     run → compensated
//	refused                   duplicate                     → void: it did nothing
//	void                      superseded                    duplicate
//	compensated               superseded                    duplicate
//	retrying (parked)         duplicate: the copy wins      waits its turn, or cancels it → void
//	dead                      duplicate: the copy wins      dead letter, or → void
//	undoing, undo-dead        duplicate                     duplicate: the copy wins
//
// The same identity with another payload is a dead letter (key-reused).
//
// # Failures
//
// A handler that fails, by an error, a panic or its deadline, has its database
// work rolled back and its message parked in the same transaction; the delivery
// is acked, so that nothing blocks behind it and nothing loops. Parked messages
// run again from the database. After MaxAttempts entries into the handler, or
// at once for a [Terminal] error, the parked message becomes a dead letter: it
// keeps reason, error, stack, attempts and the message as it came.
//
// A message that cannot be read (no key, no scope, unknown type, undecodable)
// is a dead letter at once, and is never an error. So is one that Options.Verify
// refuses, before anything that it says is believed.
//
// Whoever waits for a handler's answer gets none from a message that ends like
// that, or from a compensation that found nothing to undo. [Step.Unhandled] emits
// one in the transaction that records such an end.
//
// # Batches
//
// Up to BatchSize deliveries, with BatchBytes of payload, share a transaction: one
// claim, one commit. What fails in it falls back to a savepoint and is parked; the
// others go on. If the transaction is lost, its messages are handled one by one.
// What a handler sends by [Delivery.Queue] travels with COMMIT.
//
// Handlers run one after the other, in ascending order of scope and key, and those
// of one saga in the order of its deliveries. So handlers that lock nothing but
// rows of their saga, in their transaction, cannot deadlock with those of another
// batch, in whatever process. What is queued is executed in the same order, but
// after all handlers: where one step locks a row at once, another should not lock
// it by what it queues. Of a saga that has several messages in a batch, what one
// handler queues is executed before the next is entered, which therefore sees it.
//
// # After a crash
//
//   - Before COMMIT: nothing has happened; the broker delivers again.
//   - After COMMIT, before the ack: the broker delivers again and the row says
//     done; the delivery is acked without running.
//   - COMMIT sent, answer lost: the message is treated as if it had been
//     delivered again, and the row tells.
//   - In the handler: the broker says that it delivers again, so the attempt is
//     counted in a commit of its own before the handler is entered. A message
//     that kills the process cannot do so more than MaxAttempts times.
//
// # Effects outside the database
//
// What a handler does outside its transaction may be done again. A call to
// another system is an [Effect] instead: the row is retrying or undoing before the
// call is made, and the message parked, with the attempt counted and in doubt; so
// nothing is locked meanwhile, and a process that dies leaves that behind. The
// next attempt repeats the call under the same key, or asks first what became of
// it. What came of an attempt is recorded only if no other one has begun since.
package consumer
