// Package saga runs business transactions that span several services. A definition lists the steps and the
// compensation of each. An orchestrator sends the commands, takes the replies, and compensates after a failure.
//
//	Starter.Start ── the caller's transaction ─► row in the table saga, first commands in the outbox
//	relay ─► broker ─► participant: its inbox, its work, its reply in its outbox
//	relay ─► broker ─► Orchestrator ── one transaction ─► inbox, row of the instance locked and moved, next commands in the outbox
//
// # How to begin
//
//  1. [Define] the steps once, with [Remote], [Tell] or [Local] for what each does. migrations.Up makes the tables.
//  2. [NewOrchestrator] and Orchestrator.Run, beside the Run of an outbox.Relay of the same schema.
//  3. [NewStarter], and Starter.Start in the transaction of a request.
//  4. In each service that takes part: [Participant] with [On] and [OnUndo], as a step of consumer.New, and a relay.
//
// The package's Examples are both sides: orchestrator and participant.
//
// # What is authoritative
//
// The row of an instance. It moves only under its lock, in the transaction that also records the reply as handled
// and stores what is sent next. A pure function of that row and of the event decides which step is done, which is
// compensated and what follows (internal/machine).
//
// A step's command carries the key of the saga, and a number for the step and the attempt. So the participant's inbox
// has one row for each attempt at each step, and a compensation that overtakes its action leaves a tombstone there:
// see package consumer.
//
// The number begins with the end of the instance's random id. So a participant keeps two sagas apart that have one
// key: because two services run them, or because a key was used again after Retention.
//
// # After a crash
//
//   - Before the COMMIT of Start: there is no instance.
//   - Of the orchestrator, before COMMIT: nothing has happened; the broker delivers the reply again. After COMMIT: the
//     reply is a duplicate.
//   - Of a participant: as package consumer says. The orchestrator waits.
//   - Deadlines are columns. Any orchestrator of the schema acts on those that are due.
//
// # How a saga ends
//
// Completed, or compensated, in a transaction in which [Definition.OnEnd] can do something too, such as mark the order.
// Until then it runs, compensates, is paused by a person, or is stuck. It is stuck when
// a step from the pivot on is rejected for good or misses its deadline, when a compensation fails for good, when a message
// has no reply for [Options].Patience, or when a handler emits what the outbox refuses. A late reply frees it, as the
// verbs of an operator do. A dead letter of an action does not make it stuck: the saga is held, and runs on when the
// letter is redriven ([Step].OnDeadLetter).
//
// Choreographed sagas do not need this package. Their steps run in package consumer and follow each other's messages.
//
// # Stages
//
// An event goes forward through the files in this order. No stage calls an earlier one.
//
// definition*.go: a [Definition] is a plan, which is data, and functions. builder makes it from steps.
//
// start.go: a [Starter] makes the row of a new instance, in the transaction of its caller, and hands it to decide.
//
// reply.go: receiver turns the delivery of a reply into an event, and locks the instance that it is for.
// reply_lock.go locks the instances of a whole batch in one round trip. reply_verify.go refuses a reply under the
// name of another step before it reaches the inbox.
//
// decide_event.go: decider applies an event to the locked row by package internal/flow. An instance without a row
// begins here, for Start and for a nested saga. decide_work.go does the work that follows: commands, local steps in a
// savepoint, nested instances.
//
// store.go: the row, and the messages that it sends, in the transaction that locked it. The statements are in
// store_sql.go. The row itself is package internal/sagarow, which package operator uses too.
//
// Beside that way: timer.go claims instances that are due, and enters them at decide, each in its own transaction.
// housekeep.go does the same with steps that have no reply. orchestrator.go connects the stages. manifest.go has the
// registered versions, and the check that a binary can finish what is live. participant.go is the other side: handlers
// that reply. stats.go has statuses and numbers.
package saga
