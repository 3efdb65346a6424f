package outbox

// sqlBegin begins a transaction in which each statement sees what has committed
// by then, whatever the database's default is: what is looked at under a lock
// must not be older than the lock. A relay that hangs in the middle of it loses
// its session, and with it the lock that keeps others out, after a lease:
// its length in milliseconds follows.
const sqlBegin = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = `

// sqlLockRelay locks the row of who publishes and reads it. Somebody else who
// is about to take it over makes it look absent: that is not waited for.
const sqlLockRelay = `
SELECT epoch, holder, system_identifier, extract(epoch FROM lease_until - clock_timestamp())::float8 AS left
FROM {schema}.outbox_relay FOR UPDATE SKIP LOCKED`

// sqlTakeLease follows sqlLockRelay in its transaction. $3 is in microseconds.
const sqlTakeLease = `
UPDATE {schema}.outbox_relay
SET epoch = $1, holder = $2, lease_until = clock_timestamp() + $3 * interval '1 microsecond'`

// sqlBeginTenure goes with sqlTakeLease. After a crash of the server its row is
// gone, and with it the tenure: ids of transactions whose end the relay has seen,
// and the disk has not, are given out again.
const sqlBeginTenure = `
WITH before AS (DELETE FROM {schema}.outbox_tenure)
INSERT INTO {schema}.outbox_tenure (epoch) VALUES ($1)`

// sqlRenewLease changes nothing for a relay whose tenure is over.
const sqlRenewLease = `
UPDATE {schema}.outbox_relay SET lease_until = clock_timestamp() + $2 * interval '1 microsecond'
WHERE epoch = $1 AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)`

// sqlReleaseLease lets the next relay take over at once.
const sqlReleaseLease = `UPDATE {schema}.outbox_relay SET lease_until = 'epoch', holder = '' WHERE epoch = $1`

// sqlReadSystem tells which cluster this is and what its transactions are up
// to. Ids of transactions mean nothing in another cluster.
const sqlReadSystem = `SELECT system_identifier::text, pg_current_snapshot()::text FROM pg_control_system()`

const sqlStampSystem = `UPDATE {schema}.outbox_relay SET system_identifier = $1`

// sqlReadCursor reads how far the log is published, and which of the two
// tables says so.
const sqlReadCursor = `
SELECT epoch, seq, from_snapshot, to_snapshot, last_id, which FROM (
	SELECT epoch, seq, from_snapshot, to_snapshot, last_id, 0 AS which FROM {schema}.outbox_cursor_0
	UNION ALL
	SELECT epoch, seq, from_snapshot, to_snapshot, last_id, 1 FROM {schema}.outbox_cursor_1) c
ORDER BY epoch DESC, seq DESC LIMIT 1`

// sqlCheckpoint notes how far the log is published, unless the tenure is over.
// Should another relay take over at this very moment, the row bears the older
// epoch and is not read again.
const sqlCheckpoint = `
INSERT INTO {schema}.{cursor} (epoch, seq, from_snapshot, to_snapshot, last_id)
SELECT $1, $2, $3, $4, $5
WHERE EXISTS (SELECT FROM {schema}.outbox_relay WHERE epoch = $1) AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1)`

const sqlTruncateCursor = `TRUNCATE {schema}.{cursor}`

// sqlAsynchronous lets the transaction's commit not wait for the disk: a
// checkpoint that a crash of the server takes back costs duplicates, and it
// takes back nothing that came before.
const sqlAsynchronous = `SELECT set_config('synchronous_commit', 'off', true)`

// sqlLockSoon makes the transaction give up a lock rather than wait for it with
// everybody queueing up behind.
const sqlLockSoon = `SELECT set_config('lock_timeout', $1, true)`

// sqlFence holds off another relay until the transaction ends, and finds no
// row if the tenure is over.
const sqlFence = `
SELECT epoch FROM {schema}.outbox_relay
WHERE epoch = $1 AND EXISTS (SELECT FROM {schema}.outbox_tenure WHERE epoch = $1) FOR SHARE`

// sqlUnlimited lets the transaction's statements take as long as they need, by
// the role's settings.
const sqlUnlimited = `SELECT set_config('statement_timeout', '0', true)`

// sqlRestampMessages makes every message one of this transaction: whatever
// ids they bear are those of another cluster.
const sqlRestampMessages = `UPDATE {schema}.outbox SET xid = pg_current_xact_id()`
