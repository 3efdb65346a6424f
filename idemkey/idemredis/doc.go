// Package idemredis keeps idempotency records in Redis, for handlers whose
// effects are not in one Postgres database.
//
// # What is authoritative
//
// One hash for each identity, and the token in it. Claiming, keeping, releasing
// and renewing are one script each, on that one key, and compare and set on the
// token. All times are Redis's own; no application host's clock is asked.
//
// # What it guarantees
//
// At most one live lease for a key, as long as Redis keeps the writes that it confirmed. There is no
// common commit: the handler's effects and the record are in two systems, and Redis
// takes no part in a transaction. For effects in Postgres, package idempg is the
// better choice, and idemhybrid if there are many duplicates.
//
// # States
//
// Those of package idemkey. The key expires with the record, which lives from
// its claim on for the claim's TTL, and so outlives the lease: after a lapse the
// next run is attempt 2. Redis removes expired records without a sweeper. A claim
// with RejectExpired keeps its record for Options.KeepExpired longer, so that the
// expired key can be refused. With Options.ExternalEffects a record has no TTL before its outcome is known; openrun.go
// lists these runs for each scope.
//
// # Failures
//
//   - The process dies while the handler runs: the record is in progress until the lease lapses, then the next
//     request takes over as attempt 2. The effects of the first run stand: the handler looks at
//     [idemkey.RequestInfo]. With Options.ExternalEffects the outcome is unknown instead, and nobody takes over.
//   - The owner stalls for longer than its lease: two handlers may run. The first finds, at its next renewal or when it
//     is done, that the record is no longer its own. One response is kept, the new owner's.
//   - Redis does not answer a claim: nothing runs. It may have been claimed all the same, for one lease.
//   - Redis does not answer when a response is to be kept: this is tried a few times, then the handler's response is
//     sent, without a record. The record stays in progress until its lease lapses, and the next request runs again.
//   - A reply is lost: the client sends the script again, and the second run returns the same.
//   - Redis fails over to a replica that lacks the last writes, or evicts keys: a record is lost and a request may
//     run twice. [Store.Check] looks for the settings that make this likely. WAIT would narrow the first gap
//     and not close it.
//
// # Limits
//
// Records whose outcome is or may become unknown are in a set for each scope, so that their number has a limit. There is no
// index of a scope's other records, so no quota on them: a cluster runs only scripts of one key. The records of one caller are bounded by the rate at which it
// may call, the claim's TTL and idemkey.Options.Limits.MaxResponseBody.
//
// It needs Redis 6 or later, or a server that runs the same scripts.
package idemredis
