package consumer

// sqlNameParked gives a message that could not be read when it came its identity.
// attempts is the fence, as in sqlLockParked. The index parked_retrying refuses it
// where another copy goes round; it waits for a transaction that is parking one.
const sqlNameParked = `
UPDATE {schema}.parked SET kind = $3, scope = $4, key = $5, step = $6, n = $7
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'`

// sqlRefuseParked makes such a message a dead letter again.
const sqlRefuseParked = `
UPDATE {schema}.parked
SET state = 'dead', reason = $3, error = $4, stack = $5, attempts = $6, last_at = clock_timestamp()
WHERE id = $1 AND attempts = $2 AND state = 'retrying' AND kind = 'unknown'`

// sqlYieldParked removes such a message in favor of a copy that goes round, or, if
// that copy says something else, makes it a dead letter under their identity.
const sqlYieldParked = `
WITH other AS (SELECT coalesce(digest, sha256(payload)) = $4 AS same FROM {schema}.parked
	WHERE state = 'retrying' AND kind = $3 AND scope = $7 AND key = $8 AND step = $9 AND n = $10),
dropped AS (DELETE FROM {schema}.parked p USING other
	WHERE other.same AND p.id = $1 AND p.attempts = $2 AND p.state = 'retrying' AND p.kind = 'unknown')
UPDATE {schema}.parked p
SET state = 'dead', kind = $3, scope = $7, key = $8, step = $9, n = $10, reason = $5, error = $6, stack = '', attempts = 0, last_at = clock_timestamp()
FROM other WHERE NOT other.same AND p.id = $1 AND p.attempts = $2 AND p.state = 'retrying' AND p.kind = 'unknown'`
