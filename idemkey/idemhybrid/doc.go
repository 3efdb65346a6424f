// Package idemhybrid puts a lock in Redis in front of the records that package
// idempg keeps in Postgres, where many duplicates arrive at once.
//
// # What is authoritative
//
// The row in Postgres is authoritative, as in package idempg, with all its
// guarantees. The lock only sheds work: a duplicate that finds it taken costs one
// SELECT, on a connection that it gives back at once. It needs no INSERT and no
// place among the running handlers. The request that has the lock must still claim
// the row.
//
// # Failures
//
//   - Redis does not answer: Postgres alone decides, unless Options.RequireLock. The first requests wait for
//     Options.CallTimeout, all at once. After the first failure Redis is passed over: each second one call probes
//     it, and no other call waits for it. After the first probe that succeeds, requests take locks again. So locks
//     are back about a second after Redis and the client's connections. A lock that was taken before the failure is
//     still freed when its request ends, which may cost that request CallTimeout once more.
//   - The lock lapses, or Redis forgets it, while the handler runs: another request gets the lock, and finds in
//     Postgres that the first is in flight.
//   - The process dies: the lock lapses after the claim's lease. Until then a retry gets 409 in-progress, even where
//     Postgres would let it take over. A response that was committed is replayed all the time.
//   - Postgres does not answer: nothing runs, and the lock is given back.
package idemhybrid
