// Package outbox stores messages in the transaction that they report on and publishes them once it
// has committed (the transactional outbox pattern).
//
//	stored ──published, confirmed, not returned──► done with
//	   │
//	   ├─ the broker refuses it ─► held, refused ──due again──► published, or refused once more
//	   │                               │   └── attempts used up ──► held, dead: waits for a person
//	   │                               └── later messages of its ordering key: held, waiting
//	   └─ its topic takes none ──► held, waiting ──a probe is answered──► published
//
// A message with a Delay starts out held. When it is due, the relay moves it into the log in one
// transaction, and it is stored like any other: a delayed message counts as written when it is due.
// Package operator lists, redrives and discards dead letters. A redriven message is moved into the
// log in the same way.
//
// # How to begin
//
//  1. migrations.Up makes the tables, in a schema of the service's own.
//  2. [NewWriter], and [Writer.Write] in the caller's transaction, beside the business rows.
//  3. [NewRelay], onto a rabbitmq.Publisher or [FromWatermill], and [Relay.Run] in a goroutine of each process.
//  4. [Relay.Wake] after the commit: without it the relay finds the message at its next poll.
//
// The Example of [FromWatermill] shows all four.
//
// # The stages of a message
//
// A message passes the files of this package in this order. Each stage has its own types. The
// leader takes the value of one stage to the next; no stage calls an earlier one.
//
//   - write_message.go, write.go: a [Writer] checks messages and stores them in the caller's transaction.
//   - relay.go: a [Relay] wires the stages of one outbox, and stands by or leads.
//   - lead_lease.go, lead.go: lease makes one relay the active one. leader is its tenure. It does round
//     after round: settle, read, hand over to the lanes, look after space.
//   - read.go, read_held.go: logReader reads committed messages behind the cursor, page by page.
//     heldReader reads refused messages that are due, and moves delayed ones into the log.
//   - lane_window.go, lane.go, lane_result.go: window has the pages in flight. A lane publishes the
//     messages of its share of the ordering keys, one of each key at a time, and decides what became
//     of each.
//   - publish.go, publish_watermill.go: sender calls the [Publisher]. [FromWatermill] makes one of any
//     watermill publisher.
//   - settle.go, settle_space.go: settler notes decided pages, in their order: a checkpoint of the
//     cursor, and rows of outbox_held for refused, deferred and waiting messages. spaceKeeper empties
//     tables of the log once all of it is published.
//
// Beside this way: stall.go and stall_probe.go keep account of topics that take no messages, and
// probe them. wake.go tells the relay of commits. stats.go counts. sql.go binds the statements to a
// schema. Each statement stands in the file that uses it, or in internal/outboxsql if package operator
// uses it too.
//
// # What is authoritative
//
// The tables outbox_0, 1, 2 and other are an append-only log: a message is in it if and only if its
// transaction committed. The newest row of outbox_cursor_0 and 1 says how far the log is published.
// A position is a pair of snapshots, not an id: ids are drawn before transactions commit, and a
// reader that remembers the largest id skips messages that commit late. Messages that are in one
// snapshot and not in the one before are read in the order of their ids. They are noted as published
// page by page. A message is never updated or deleted on its way. A table of the log is emptied as a whole,
// by TRUNCATE, once all of it is published. So a transaction that stays open elsewhere does not slow
// the log down, and a transaction that has written messages delays its own only.
//
// The row outbox_relay names the active relay. Its epoch rises with each change. The database
// refuses the notes of an overtaken relay.
//
// # Topics that stall
//
// A queue that is full, or has no leader, costs its own topic only. Each call of the publisher has
// messages of one topic, and calls for several topics run at once. When the broker answers and takes
// no messages of one topic, the relay keeps that topic's messages aside and goes on with the others.
// It sends one of them as a probe at intervals of up to 5 s, and all of them once a probe is
// answered. No attempt is spent, so that none becomes a dead letter. After a crash the next relay
// makes them due at once.
//
// # After a crash
//
//   - Before the writer's COMMIT: nothing was stored, nothing is published.
//   - Of the relay: messages that were published and not yet noted, at most a [RelayOptions].Window,
//     are published again under the same message ids. The receiving step's inbox absorbs them.
//     Another relay takes over when the lease runs out.
//   - Of PostgreSQL: the notes of its last moments may be lost with it, since they do not wait for
//     the disk. The messages that they covered are published again. A message is never noted by
//     mistake: the log has one order on disk. The move of a delayed message may be lost in the
//     same way. Then the message is moved again.
//   - A dump that is restored into another cluster: transaction ids mean nothing there. The relay
//     notices and publishes all messages again that are still in the log.
//
// # Order
//
// Messages with one ordering key are first delivered in the order in which their transactions
// committed. The condition: the writers of the key serialise before they write, as by locking the
// same row. The relay has one message of a key in flight at a time. A refusal, or an outcome that is
// not known, holds back later messages of that key, and nothing else. Only a dead message no longer
// holds anything back. A delayed message comes behind all messages of its key that were committed
// when it was due. The relay looks ten times a second. Until it has moved the message, others of the
// key may get ahead.
package outbox
