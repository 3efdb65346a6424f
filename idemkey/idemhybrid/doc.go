// Package idemhybrid puts a lock in Redis in front of the records that package
// idempg keeps in Postgres, where many duplicates arrive at once.
//
// # What is authoritative
//
// The row in Postgres, as in package idempg, with all that it guarantees. The
// lock only sheds work: a duplicate that finds it taken costs one SELECT, on a
// connection that it gives back at once, and neither an INSERT nor a place among
// the running handlers. Who has the lock still has to claim the row.
//
// # Failures
//
//   - Redis does not answer: Postgres alone decides, unless Options.RequireLock. The first requests wait for
//     Options.CallTimeout, all at once. After the first failure Redis is passed over: each second one call probes it, and
//     no other waits for it. The first probe that succeeds has each request take its lock again, so that locks are back
//     about a second after Redis and the client's connections are. A lock that was taken before the failure is still
//     freed when its request ends, which may cost that request CallTimeout once more.
//   - The lock lapses, or Redis forgets it, while the handler runs: another request gets the lock and is told by Postgres
//     that the first is in flight.
//   - The process dies: the lock lapses after the claim's lease. Until then a retry is told that the request is in flight,
//     also where Postgres would let it take over. A response that was committed is replayed all the time.
//   - Postgres does not answer: nothing runs, the lock is given back.
package idemhybrid
