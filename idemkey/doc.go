// Package idemkey makes HTTP handlers idempotent by the Idempotency-Key
// header: for one scope and key, a request runs to a kept outcome once, and
// every retry gets that outcome's bytes.
//
// # How to begin
//
//  1. migrations.Up makes the tables, with migrations.Idempotency none but this package's, and idempg.New a [Store] in them; [NewMemory] is one for a trial.
//  2. [New], with Options.Scope: whose key it is.
//  3. [Middleware.Handler] around the endpoint. idempg.HandleTx gives it the transaction.
//  4. [NewSweeper] and [Sweeper.Run] remove what has expired.
//
// The Example of package idempg is steps 1 to 3 in Postgres, that of this package the same in memory.
//
// # What is authoritative
//
// The record in the [Store], and only it. A record belongs to an [Identity], the
// tuple of namespace, scope and key; its times are by the store's clock.
// Package idempg keeps it in Postgres and commits it in the handler's own
// transaction: the business writes and the response to replay are durable
// together or not at all. [Memory] keeps it in the process and has no transactions.
//
// # Packages
//
//   - idempg: records in Postgres, committed with the business writes. The default choice.
//   - idemredis: records in Redis, for effects that are in no database.
//   - idemhybrid: idempg behind locks in Redis, where many duplicates arrive at once.
//   - idemgin, idemecho: those frameworks; chi and net/http need none.
//   - idemkeytest: the suites for a store or an adapter of your own.
//
// # States
//
//	absent       no record: a request runs
//	in progress  an owner, named by a random token, runs it until its lease lapses
//	failed       rolled back; the same request may run again, another one is a mismatch
//	completed    the response is kept and replayed until it expires
//	tombstone    it ran, but body or headers were too large to keep: 410, never run again
//
// An incarnation names one life of a key: all retries of a request share it, and the first request
// after the record has expired begins another one. A saga that a request begins is named by scope,
// key and incarnation, so that a key which is used again begins another saga. Within the handler the
// messages take all three from the context. Store them with the business row if messages follow
// later, such as a cancellation: [Info] tells them.
//
// [Claim.Judge] says what each means for a new request. Completing, rejecting
// and releasing are compare and set on the token, so a late owner changes nothing.
//
// # The fingerprint
//
// A key belongs to one request: method, path, query, media type without its
// parameters, content encoding and body. JSON counts by meaning: the order of members, white
// space and escapes do not matter, 1 and 1.0 differ, and a document with two members of one name
// counts byte by byte. Forms count by name, multipart bodies part by part. Host, cookies and credentials do
// not count, other headers only by Fingerprint.IncludeHeaders. Fingerprint.ExcludeFields leaves JSON
// members out, of bodies that are declared to be JSON.
//
// A record says which [FingerprintOptions] made its fingerprint, and a retry is compared by those.
// When they change, the old ones stay in Fingerprint.Versions until Limits.TTL after the last
// process that used them; docs/upgrading.md has the order of deploys. Where a process has not the
// settings of a live record, the request neither runs nor is replayed: 409 fingerprint-unknown,
// and an error in the log. The settings of all routes made by [Middleware.With] are known to each.
//
// # Outcomes
//
// A handler writes to a buffer. When it returns, its verdict ([SetVerdict]) or
// the [Policy] decides. By default: 2xx and 3xx commit and are kept. 4xx roll
// back and are kept, except those that depend on the caller or the moment (401 403 407 408
// 409 421 423 425 429). All else, panics and timeouts, rolls back and releases
// the key for the same request. The client hears nothing before the outcome is durable. A
// goroutine that the handler has left behind can write no more: [ErrSettled].
//
// A handler that fails by [Fail], or by an error that it returns, is answered with the error itself if
// it is a [*Problem], else with what Problems.MapError makes of it, else with 503 [CodeTxConflict] for
// a serialization failure or a deadlock, else with 500.
//
// # Mounting
//
// Whatever may refuse a caller goes outside of [Middleware.Handler], and so do recovery, tracing
// and compression. Middleware that reads bodies there restores them, or goes inside of
// [Middleware.Outer]: a body that was consumed is refused. Handler is mounted once on a request's
// way. A route's own options come from [Middleware.With], whose lists replace those of the
// middleware. The response headers of the key and of the replay are the middleware's alone.
//
// docs/operations.md has the order of handlers, and all codes that the middleware answers with.
//
// # After a crash
//
// Before the commit: the business writes are gone, the record is in progress,
// and a retry is told 409 until the store notices, then runs as the next
// [RequestInfo].Attempt. After the commit: a retry gets the response. With a
// commit whose reply was lost, the store looks the record up before it says anything.
//
// A handler whose effects lie outside of the store's transaction must be able to
// repeat them: give the other side a [DownstreamKey] and look at Attempt. Anything above 1
// means that an earlier run may have got that far.
//
// # Clients
//
// On a timeout, a 409 with Retry-After or a 5xx, retry with the same key. On
// 2xx stop. On 401 or 403 mend the credentials. On the other 4xx that are not kept
// (Outcomes, above) wait or mend what they say, and retry with the same key. On any other 4xx
// mend the request and choose a new key: the answer to the old one is kept, unless the
// handler said [Amendable].
package idemkey
