// Package idempg keeps idempotency records in Postgres, and commits them in the
// handler's own transaction.
//
// # What is authoritative
//
// The row in the table idempotency_key. A request's business writes and its row's
// change to completed are one transaction: both are durable, or neither is.
// All times are the server's.
//
// # How a request runs
//
//  1. An INSERT … ON CONFLICT DO NOTHING in its own transaction claims an absent key. Its
//     commit is asynchronous: a claim that is lost with the server has committed nothing. With Options.ExternalEffects
//     it is durable: a system outside may have seen the request.
//  2. Where there is a record, it is read and decides. A key that this process has met
//     before is looked up first.
//  3. A failed, expired or abandoned record is taken over, if its row is not locked.
//  4. BEGIN, and the row is locked FOR UPDATE, in the round trip of the handler's first
//     statement, or after a quarter of Options.Grace. From here on the lock proves that the
//     owner lives: a handler may use all its time without a heartbeat, and is never
//     overtaken. The lease covers steps 1 to 4 only.
//  5. The row is updated to completed, under the claim's token, in the round trip of COMMIT. The
//     update fails, and COMMIT with it, if another owner has the record.
//
// With [ClaimInline] an advisory lock of the business transaction takes the place
// of steps 1 to 4, and the row is inserted in the end.
//
// # Failures
//
// A process that dies loses its connection; the server rolls back and frees the lock
// at once if it was idle, or within Options.ConnectionCheck if a statement was
// running. A retry is refused until the lease is over too, then takes over. With Options.ExternalEffects it does not: the
// outcome is unknown, and the record does not expire before somebody has decided.
//
// Under ClaimInline the answer to the opening may be lost on a connection whose end the server does not
// notice. Its session holds the key's lock, so another session of the same role ends it (pg_terminate_backend).
//
// If PostgreSQL hides the row from the session by row-level security, or the handler removes the row, nothing commits:
// the request gets 500 record-hidden ([idemkey.ErrRecordHidden]).
//
// If an owner stalls before step 4 and is overtaken, its first statement or its end fails. That statement is
// executed all the same and rolled back. Effects that do not roll back, such as a sequence's, stay.
//
// A rejected request (4xx) is rolled back first, and its response is kept by a
// second transaction. If the process dies in between, the request runs again.
//
// A COMMIT whose reply is lost is looked up on another connection, by token and row
// lock. The result counts once the look-up itself is durable. With a synchronous standby that does
// not answer, a request gets 503 outcome-unverified. Its retries are answered
// from the primary, as all other readers are.
//
// A handler may end the transaction by SQL that it sends. The statement before COMMIT and the round trip of
// ROLLBACK detect that by the transaction's id. The handler's commits stand, later writes are rolled back,
// and its key keeps [idemkey.ErrTxMisuse] as its outcome: the request never runs again. One case is not detected:
// the handler rolls back, commits another transaction, and leaves a third in which a statement has failed.
//
// # Connections
//
// A running handler holds one connection, at most Options.MaxInFlight of them at once. While all
// places are taken, the remaining connections still answer replays, and duplicates of running requests.
// A handler must do its work in [Tx] and not take a second connection from
// the same pool: with every place taken, all would wait for each other. It may
// SET LOCAL ROLE for its statements: the record is written as the role that the session had before.
// Settings are made with SET LOCAL and locks end with their transaction, so
// poolers in transaction mode work, with a QueryExecMode that suits them.
package idempg
