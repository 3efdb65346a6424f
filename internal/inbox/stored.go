package inbox

import (
	"cmp"
	"maps"
	"slices"
)

// Unread is the kind of a stored message that no step could read. It has no identity.
const Unread Kind = "unknown"

// ReusedText is the error of a message whose identity belongs to another payload.
const ReusedText = "consumer: scope, key and step were used before with another payload"

// An Identity is the primary key of a row of the table inbox.
type Identity struct{ Scope, Key, Step, N string }

// Compare orders identities as rows of the inbox are locked.
func (id Identity) Compare(other Identity) int {
	return cmp.Or(cmp.Compare(id.Scope, other.Scope), cmp.Compare(id.Key, other.Key), cmp.Compare(id.Step, other.Step), cmp.Compare(id.N, other.N))
}

// A StoredMessage is a row of the table parked, as far as a consumer reads it.
type StoredMessage struct {
	Kind     Kind
	Identity // empty for Unread
	Topic    string
	ID       string
	Headers  map[string]string
	Payload  []byte
	Digest   []byte // of the payload before its first edit; nil: of Payload
	Reason   string
}

// A Reading is the answer of a consumer that has read a StoredMessage.
type Reading struct {
	Taken bool // the message is for a step or a topic of this consumer; nothing else is set if not

	Err          error // the message cannot be read: the reason, and why
	CancelParked bool  // the option of its step

	// Kind and Identity are those of the message itself, and Digest is that of its payload as it first came; unset with
	// Err.
	Kind
	Identity
	Digest []byte
}

// HeaderColumns returns metadata as two columns, sorted by name, without the header skip.
func HeaderColumns(metadata map[string]string, skip string) (names, values [][]byte) {
	names, values = [][]byte{}, [][]byte{}
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		if name != skip {
			names, values = append(names, []byte(name)), append(values, []byte(metadata[name]))
		}
	}
	return names, values
}

// SQLKeepFailure is part of each UPDATE of the table parked that overwrites the last failure of a message: it appends
// that failure to the earlier ones. They are the first failure, which often has the cause, and the newest eight.
//
// It appends nothing in three cases: the row has no error (the message waits); a call has begun and has not settled
// (the error was appended when the call began); the action of a compensation is dead (the compensation did not run).
// A last_at outside 1970 to 9999, which only a person can have set, becomes null.
const SQLKeepFailure = `earlier_failures = CASE
		WHEN parked.error = '' OR parked.reason IN ('calling', 'unsettled', 'action-dead') THEN parked.earlier_failures
		ELSE CASE WHEN jsonb_array_length(parked.earlier_failures) < 9 THEN parked.earlier_failures ELSE parked.earlier_failures - 1 END
			|| jsonb_build_object('at', CASE WHEN parked.last_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'
					THEN to_char(parked.last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
				'reason', parked.reason, 'error', left(parked.error, 1000), 'stack', left(parked.stack, 4000)) END`

// SQLReadHorizon reads how far the inbox has been swept, null for never. In READ COMMITTED it
// must be read by a statement behind the claim: a transaction that finds a row absent
// because a sweeper has removed it then sees the horizon that the sweeper raised before.
const SQLReadHorizon = `SELECT nullif(swept_before, '-infinity') FROM {schema}.inbox_horizon`
