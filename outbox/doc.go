// Package outbox stores messages in the transaction that they report on and
// publishes them once it has committed (the transactional outbox pattern).
//
//	stored ──published, confirmed, not returned──► done with
//	   │
//	   ├─ the broker refuses it ─► held, refused ──due again──► published, or refused once more
//	   │                               │   └── attempts used up ──► held, dead: waits for a person
//	   │                               └── later messages of its ordering key: held, waiting
//	   └─ its topic takes none ──► held, waiting ──a probe is answered──► published
//
// A message with a Delay starts out held. When it is due the relay moves it into the
// log, in one transaction, and it is stored like any other: a delayed message counts
// as written when it is due. What is dead is listed, redriven and discarded with
// [DeadLetters]; what is redriven is moved into the log in the same way.
//
// # How to begin
//
//  1. migrations.Up makes the tables, in a schema of the service's own.
//  2. [NewWriter], and [Writer.Write] in the caller's transaction, beside the business rows.
//  3. [NewRelay], onto a rabbitmq.Publisher or [FromWatermill], and [Relay.Run] in a goroutine of each process.
//  4. [Relay.Wake] after the commit: without it the relay finds the message when it looks next.
//
// The Example of [FromWatermill] is all of it.
//
// # What is authoritative
//
// The tables outbox_0, 1, 2 and other are an append-only log: a message is in it
// if and only if its transaction committed. The newest row of outbox_cursor_0 and
// 1 says how far the log is published. A position is a pair of snapshots, not
// an id: ids are drawn before transactions commit, so that a reader which
// remembers the largest one skips what commits late. What one snapshot shows and
// the one before did not is read in the order of the ids, and noted as published
// page by page. A message is never updated or deleted on its way; a table of the log is
// emptied as a whole, by TRUNCATE, once all of it is published. So a transaction
// that stays open elsewhere does not slow the log down, and one that has written
// messages delays its own only.
//
// The row outbox_relay says which relay is active. Its epoch rises with each
// change; what an overtaken relay still tries to note is refused.
//
// # Topics that stall
//
// A queue that is full, or has no leader, costs its own topic. Each call of the publisher
// has messages of one topic, and calls for several topics run at once. When the broker
// answers and takes no messages of one topic, the relay keeps that topic's messages aside and
// goes on with the others. It sends one of them as a probe at intervals of up to 5 s,
// and all of them once a probe is answered. No attempt is spent, so that none becomes a
// dead letter. After a crash the next relay makes them due at once.
//
// # After a crash
//
//   - Before the writer's COMMIT: nothing was stored, nothing is published.
//   - Of the relay: what was published and not yet noted, at most a
//     [RelayOptions].Window of messages, is published again under the same
//     message ids. The receiving step's inbox absorbs it. Another relay takes over
//     when the lease runs out.
//   - Of PostgreSQL: the notes of its last moments may be lost with it (they do
//     not wait for the disk), and what they covered is published again. A message
//     is never noted by mistake: the log has one order on disk. So it is with the move
//     of a message that was due: it is moved again.
//   - A dump that is restored into another cluster: transaction ids mean nothing
//     there. The relay notices and publishes all that the log still holds again.
//
// # Order
//
// Messages with one ordering key are first delivered in the order in which their
// transactions committed, provided that the writers of the key serialise before
// they write, as they do by locking the same row. The relay has one message of a
// key in flight at a time: a refusal, or an outcome that is not known, holds back
// what comes later in that key, and nothing else. Only a message that has become
// dead no longer holds anything back. A delayed message comes behind all of its key
// that was committed when it was due. The relay looks ten times a second, and until it
// has moved the message others of the key may get ahead.
package outbox
