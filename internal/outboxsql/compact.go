package outboxsql

import (
	"cmp"
	"strings"
)

// A row of the log leaves out what other columns of the row say. In the log
//
//   - an empty type is the topic,
//   - an empty correlation_id is the causation_id, or the message's own id if that is empty too,
//   - an empty content_type is [DefaultContentType],
//   - an ordering_key that is empty, or begins with U+001F, stands behind that of the saga: scope, U+001F, key,
//   - an ordering_key that begins with U+001E is what follows.
//
// [Compact] shortens a message so, and [Expand] takes it back. The names with Logged are Expand for statements, where
// m is the row. The rows of outbox_held are complete: the relay searches them by ordering key.
const (
	DefaultContentType = "application/json"

	LoggedType        = `coalesce(nullif(m.type, ''), m.topic)`
	LoggedCorrelation = `coalesce(nullif(m.correlation_id, ''), nullif(m.causation_id, ''), m.message_id::text)`
	LoggedContentType = `coalesce(nullif(m.content_type, ''), '` + DefaultContentType + `')`
	LoggedOrderingKey = `CASE left(m.ordering_key, 1) WHEN '' THEN m.scope || E'\x1f' || m.key
		WHEN E'\x1f' THEN m.scope || E'\x1f' || m.key || m.ordering_key
		WHEN E'\x1e' THEN substr(m.ordering_key, 2) ELSE m.ordering_key END`

	// KeptOrderingKey puts the complete ordering_key of a row of outbox_held into the log.
	KeptOrderingKey = `CASE WHEN left(ordering_key, 1) IN (E'\x1f', E'\x1e') THEN E'\x1e' || ordering_key ELSE ordering_key END`
)

const (
	keySeparator  = "\x1f"
	keepsOrdering = "\x1e"
)

// SagaKey returns the ordering key of the messages of a saga, as one string. The separator is forbidden in both parts,
// so that two pairs never make one ordering key.
func SagaKey(scope, key string) string { return scope + keySeparator + key }

// Columns are those columns of a message that may be shortened, and those that say what they were.
type Columns struct {
	ID, Topic, Scope, Key, Causation            string
	Type, Correlation, ContentType, OrderingKey string
}

// Compact returns complete columns in the form of the log.
func Compact(c Columns) Columns {
	if c.Type == c.Topic {
		c.Type = ""
	}
	if c.Correlation == cmp.Or(c.Causation, c.ID) {
		c.Correlation = ""
	}
	if c.ContentType == DefaultContentType {
		c.ContentType = ""
	}
	rest, ofSaga := strings.CutPrefix(c.OrderingKey, SagaKey(c.Scope, c.Key))
	switch {
	case ofSaga && (rest == "" || strings.HasPrefix(rest, keySeparator)):
		c.OrderingKey = rest
	case strings.HasPrefix(c.OrderingKey, keySeparator), strings.HasPrefix(c.OrderingKey, keepsOrdering):
		c.OrderingKey = keepsOrdering + c.OrderingKey
	}
	return c
}

// Expand returns the complete columns of a row of the log.
func Expand(c Columns) Columns {
	c.Type = cmp.Or(c.Type, c.Topic)
	c.Correlation = cmp.Or(c.Correlation, c.Causation, c.ID)
	c.ContentType = cmp.Or(c.ContentType, DefaultContentType)
	if kept, ok := strings.CutPrefix(c.OrderingKey, keepsOrdering); ok {
		c.OrderingKey = kept
	} else if c.OrderingKey == "" || strings.HasPrefix(c.OrderingKey, keySeparator) {
		c.OrderingKey = SagaKey(c.Scope, c.Key) + c.OrderingKey
	}
	return c
}
