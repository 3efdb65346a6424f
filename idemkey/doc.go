// Package idemkey makes HTTP handlers idempotent by the Idempotency-Key header. For one scope and key, the
// handler completes a request once, and every retry gets the bytes of the same response.
//
// # How to begin
//
//  1. migrations.Up makes the tables (migrations.Idempotency: only this package's), and idempg.New a [Store] in
//     them. For a trial, [NewMemory] is a store without a database.
//  2. [New], with Options.Scope: the caller whom a key belongs to.
//  3. [Middleware.Handler] around the endpoint. idempg.HandleTx gives it the transaction.
//  4. [NewSweeper] and [Sweeper.Run] remove what has expired.
//
// The Example of package idempg is steps 1 to 3 in Postgres, that of this package the same in memory.
//
// # What is authoritative
//
// The record in the [Store] is authoritative, and nothing else. A record belongs to an [Identity], the
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
//	unknown      with Options.ExternalEffects: it may have had its effects; 409 until somebody decides
//
// An incarnation names one life of a key: all retries of a request share it, and the first request
// after the record has expired begins another one. If the store loses the record, a retry has the same one again, unless
// a span of the TTL has ended since: docs/disaster-recovery.md. A saga that a request begins is named by scope,
// key and incarnation, so that a key which is used again begins another saga. Within the handler the
// messages take all three from the context. If messages follow later, such as a cancellation, store
// the three with the business row: [Info] returns them.
//
// [Claim.Judge] decides by the state whether a new request runs, is replayed or is refused.
// Completing, rejecting and releasing are compare and set on the token, so a late owner changes nothing.
//
// # The fingerprint
//
// A key belongs to one request: method, path, query, media type without its
// parameters, content encoding and body. JSON counts by meaning: the order of members, white
// space and escapes do not matter. 1 and 1.0 differ. A document with two members of one name
// counts byte by byte. Forms count by name, multipart bodies part by part. Host, cookies and credentials do
// not count, other headers only by Fingerprint.IncludeHeaders. Fingerprint.ExcludeFields leaves JSON
// members out, of bodies that are declared to be JSON.
//
// A record says which [FingerprintOptions] made its fingerprint, and a retry is compared by those.
// When they change, the old ones stay in Fingerprint.Versions until Limits.TTL after the last
// process that used them; docs/upgrading.md has the order of deploys. If a process lacks the
// settings of a live record, the request neither runs nor is replayed: 409 fingerprint-unknown,
// and an error in the log. All routes made by [Middleware.With] know each other's settings.
//
// # Outcomes
//
// A handler writes to a buffer. When it returns, its verdict ([SetVerdict]) or
// the [Policy] decides. By default: 2xx and 3xx commit and are kept. 4xx roll
// back and are kept, except those that depend on the caller or the moment (401 403 407 408
// 409 421 423 425 426 429). Any other response, a panic and a timeout roll back and release
// the key for the same request. The client gets no byte before the outcome is durable. A
// goroutine that still runs after the handler has returned cannot write: it gets [ErrSettled].
//
// A handler may fail by [Fail], or by an error that it returns. A [*Problem] is the answer itself. Other errors
// are answered with the result of Problems.MapError. Without one, a serialization failure or a deadlock is
// answered with 503 [CodeTxConflict], and any other error with 500.
//
// # Mounting
//
// Middleware that may refuse a caller goes outside of [Middleware.Handler], and so do recovery, tracing
// and compression. Middleware that reads bodies there restores them, or goes inside of
// [Middleware.Outer]: a body that was consumed is refused. Handler is mounted once on a request's
// way. A route's own options come from [Middleware.With], whose lists replace those of the
// middleware. Only the middleware sets the response headers of the key and of the replay.
//
// docs/idempotency-server.md has the order of handlers, and all codes that the middleware answers with.
//
// # The code
//
// A request walks through four stages, in the order in which clients observe them. [Middleware] takes it
// from one to the next (middleware.go); the value that goes through is a request, and no stage calls an
// earlier one.
//
// Receive finds out which request it is: receive.go reads the key and the scope, and defines the value that
// goes through. receive_mounts.go reads the body, keeps it for what stands between [Middleware.Outer] and the
// handler, and refuses a request that a second Handler has already claimed. receive_fingerprint.go digests
// the request, and receive_json.go brings JSON bodies to one form and leaves members out. A request that
// cannot be claimed is answered here.
//
// Claim finds out what is to become of it: claim.go asks the store, waits for a run in flight, compares
// fingerprints of other settings, and asks Options.Recover about an unknown outcome. claim_shared.go has what the
// requests of a process share: waiting room, running handlers of each scope, settings of routes, cached
// responses. The result is a ruling. All rulings but one are answered without the handler.
//
// Execute runs the handler: execute.go gives it its context, renews the lease, and has the functions that a
// handler may call. execute_buffer.go is the response that it writes, and execute_stream.go the response that
// the client gets while it is written. The result is a handled. It is the last value before the outcome.
//
// Record makes the outcome durable and only then answers: record.go has verdicts and policies, and commits,
// rejects or releases. record_stored.go makes of a response what the store keeps, and back. record_answer.go
// answers: with the handler's response, a stored one, or a problem.
//
// Beside the way: options.go, store.go (what a store must do, and [Claim.Judge]), memory.go, sweeper.go,
// unknown.go (who decides about unknown outcomes), observe.go (events, log) and problem.go.
//
// # After a crash
//
// Before the commit: the business writes are gone, the record is in progress,
// and a retry gets 409 until the store notices, then runs as the next
// [RequestInfo].Attempt. After the commit: a retry gets the response. If the reply
// to a commit was lost, the store looks the record up before it answers.
//
// A handler whose effects lie outside of the store's transaction repeats them, unless the route has
// Options.ExternalEffects: then the outcome is unknown, and the request does not run again by itself. In both cases give
// the other side a [DownstreamKey]. An Attempt above 1 means that an earlier run may have had the effects.
//
// # Clients
//
// On a timeout, a 409 with Retry-After or a 5xx, retry with the same key. On
// 2xx stop. On 401 or 403 correct the credentials. On the other 4xx that are not kept
// (Outcomes, above) wait, or correct what they name, and retry with the same key. On any other 4xx
// correct the request and choose a new key: the answer to the old one is kept, unless the
// handler said [Amendable].
package idemkey
