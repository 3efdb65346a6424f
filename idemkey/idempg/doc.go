// Package idempg keeps idempotency records in Postgres, and commits them in the
// handler's own transaction.
//
// # What is authoritative
//
// The row in the table idempotency_key. A request's business writes and its row's
// change to completed are one transaction: there never is one without the other.
// All times are the server's.
//
// # How a request runs
//
//  1. An INSERT … ON CONFLICT DO NOTHING in its own transaction claims an absent key.
//  2. Otherwise a plain SELECT decides what the record means.
//  3. A failed, expired or abandoned record is taken over, if its row is not locked.
//  4. BEGIN, and the row is locked FOR UPDATE. From here on the lock proves that the
//     owner lives: a handler may take as long as its time allows, without a
//     heartbeat, and nobody overtakes it. The lease covers steps 1 to 4 only.
//  5. The handler runs in that transaction. The row is updated to completed, under the claim's
//     token, and COMMIT sent.
//
// # Failures
//
// A process that dies loses its connection; the server rolls back and frees the lock
// at once if it was idle, or within Options.ConnectionCheck if a statement was
// running. A retry is refused until the lease is over too, then takes over.
// A rejected request (4xx) is rolled back first and its response kept by a
// second transaction; dying in between means that it runs again.
// A COMMIT whose reply is lost is looked up on another connection, by token and row lock.
//
// # Connections
//
// A running handler holds one connection, at most Options.MaxInFlight of them at once.
// A handler must do its work in [Tx] and not take a second connection from
// the same pool: with every place taken, all would wait for each other.
// Settings are made with SET LOCAL and locks end with their transaction, so
// poolers in transaction mode work.
package idempg
