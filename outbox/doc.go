// Package outbox stores messages in the transaction that they report on and
// publishes them once it has committed (the transactional outbox pattern).
//
// What is authoritative: the table outbox. A row is there if and only if its
// transaction committed and the broker has not yet confirmed the message.
//
//	stored ──published, confirmed, not returned──► gone
//	   │
//	   └─ the broker refuses it ─► held, refused ──due again──► published, or refused once more
//	                                   └── attempts used up ──► held, dead: waits for a person
//
// A message with a Delay starts out held and is published when it is due.
//
// # After a crash
//
//   - Before the writer's COMMIT: nothing was stored, nothing is published.
//   - Between the broker's confirm and the relay's COMMIT: the row is still there
//     and is published again, under the same message id. The receiving step's inbox
//     absorbs it. At most one batch is published twice for each crash.
//   - The relay's locks end with its session, so another relay takes over at once.
//
// # Order
//
// Messages with one ordering key are first delivered in the order in which their
// transactions committed, provided that the writers of the key serialise before
// they write, as they do by locking the same row. The relay has one message of a
// key in flight at a time: a refusal, or an outcome that is not known, holds back
// what comes later in that key, and nothing else. Only a message that has become
// dead no longer holds anything back.
package outbox
