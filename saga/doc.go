// Package saga runs business transactions that span several services: a
// definition says which steps there are and what undoes each, and an orchestrator
// sends the commands, takes the replies, and compensates if it has to.
//
//	Starter.Start ── the caller's transaction ─► row in the table saga, first commands in the outbox
//	relay ─► broker ─► participant: its own inbox, its work, its reply in its outbox
//	relay ─► broker ─► Orchestrator ── one transaction ─► inbox, row of the instance locked and moved, next commands in the outbox
//
// # How to begin
//
//  1. [Define] the steps once, with [Remote], [Tell] or [Local] for what each does. migrations.Up makes the tables.
//  2. [NewOrchestrator] and Orchestrator.Run, beside the Run of an outbox.Relay of the same schema.
//  3. [NewStarter], and Starter.Start in the transaction of a request.
//  4. In each service that takes part: [Participant] with [On] and [OnUndo], as a step of consumer.New, and a relay of its own.
//
// The package's Examples are both sides: orchestrator and participant.
//
// # What is authoritative
//
// The row of an instance. It is only ever moved under its lock, in the transaction
// that also records the reply as handled and stores what is sent next.
// Which step is done, which is compensated and what follows is decided by a pure
// function of that row and of what has happened (internal/machine).
//
// A step's command carries the key of the saga, and a number for the step and the attempt.
// So the participant's inbox has one row for each attempt at each step, and a
// compensation that overtakes its action leaves a tombstone there: see package consumer.
//
// The number begins with the end of the instance's random id: two services may run sagas
// under the key of one request, or a key be used again after Retention, and share a participant, which keeps them
// apart.
//
// # After a crash
//
//   - Before the COMMIT of Start: there is no instance.
//   - Of the orchestrator, before COMMIT: nothing has happened; the broker delivers the
//     reply again. After COMMIT: the reply is a duplicate.
//   - Of a participant: as package consumer says. The orchestrator waits.
//   - Deadlines are columns. Any orchestrator of the schema sees to those that are due.
//
// # How a saga ends
//
// Completed, or compensated. Until then it runs, compensates, is paused by a person, or is stuck:
// a step behind the pivot, or a compensation, has used up its attempts or was given up by its
// participant, or nobody has replied for [Options].Patience. A late reply frees it;
// so do the verbs of [Instances].
//
// Choreographed sagas need none of this: there, steps of package consumer follow
// each other's messages.
package saga
