package consumer

import "github.com/sagamill/sagamill/internal/sqlschema"

// sqlReadDoubt reads, under the lock of sqlLockParked, whether an earlier
// attempt may have had its effect ($1: the parked message), and for how many
// microseconds more the provider may still be at work on it: $3 after its call
// had ended, or $2 after its lease began if nobody saw it end. A message for which
// none has begun since it was redriven, or had to wait, has forgotten which: it is $2
// after it died, or came. (How often it was taken says nothing: a take may have led to no
// call.) Next is for how many more a call that the database has forgotten may be: $2 after
// the message came, or was redriven. Last is whether it is what was left of one of these
// that the message has waited for.
const sqlReadDoubt = `
SELECT in_doubt,
	(extract(epoch FROM last_at + CASE
		WHEN reason = 'unsettled' THEN $3::bigint
		WHEN reason IN ('calling', 'waits-for-action', 'waits-for-order') OR redriven_at > last_at THEN $2::bigint
		ELSE $3::bigint END * interval '1 microsecond' - clock_timestamp()) * 1000000)::bigint,
	(extract(epoch FROM coalesce(redriven_at, first_at) + $2::bigint * interval '1 microsecond' - clock_timestamp()) * 1000000)::bigint,
	reason = 'unsettled'
FROM {schema}.parked
WHERE id = $1`

// sqlLeaseDelivery parks a delivery before its first call, under the lock of
// the inbox row. A copy that is there already, such as a compensation's that has
// waited for the action, wins: then there is no row, and no call. sqlReadOther says
// whether that copy is the same message.
const sqlLeaseDelivery = `
INSERT INTO {schema}.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload,
	reason, error, stack, attempts, due_at, in_doubt)
VALUES ('retrying', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp() + $15 * interval '1 microsecond', true)
ON CONFLICT (scope, key, step, n, kind) WHERE state = 'retrying' DO NOTHING
RETURNING id`

// sqlReadOther reads, under the lock of the inbox row, whether the copy that goes
// round says something else than $6 is the digest of.
const sqlReadOther = `
SELECT coalesce(digest, sha256(payload)) <> $6
FROM {schema}.parked
WHERE scope = $1 AND key = $2 AND step = $3 AND n = $4 AND kind = $5 AND state = 'retrying'`

// sqlLeaseParked does the same for a parked copy, under its lock. Nobody else
// takes the message before the lease is over, unless this transaction rolls back.
const sqlLeaseParked = `
UPDATE {schema}.parked
SET reason = 'calling', in_doubt = true, last_at = clock_timestamp(), due_at = clock_timestamp() + $2 * interval '1 microsecond'
WHERE id = $1`

// sqlSetDoubt says whether what was just parked may have had its effect. last_at of
// what goes round is later by $3 microseconds than now, so that Settle after it is not
// before a call that could not be asked about has settled.
const sqlSetDoubt = `
UPDATE {schema}.parked
SET in_doubt = $2, last_at = last_at + CASE state WHEN 'retrying' THEN $3::bigint ELSE 0 END * interval '1 microsecond'
WHERE id = $1`

// sqlPostpone puts an attempt that only asked, too early, off until the call in
// doubt has settled, $2 from now. It was no attempt at a call. last_at is again
// the end of that call, $3 (Settle) before it has settled: by it the next attempt
// knows that it has. Both are of one look at the clock.
const sqlPostpone = `
UPDATE {schema}.parked
SET attempts = attempts - 1, reason = 'unsettled', due_at = t.now + $2::bigint * interval '1 microsecond',
	last_at = t.now + ($2::bigint - $3::bigint) * interval '1 microsecond'
FROM (SELECT clock_timestamp() AS now) AS t
WHERE id = $1`

type effectQueries struct {
	readDoubt, leaseDelivery, readOther, leaseParked, setDoubt, postpone string
}

func newEffectQueries(schema string) effectQueries {
	bind := func(statement string) string { return sqlschema.Bind(schema, statement) }
	return effectQueries{
		readDoubt: bind(sqlReadDoubt), leaseDelivery: bind(sqlLeaseDelivery), readOther: bind(sqlReadOther), leaseParked: bind(sqlLeaseParked),
		setDoubt: bind(sqlSetDoubt), postpone: bind(sqlPostpone),
	}
}
