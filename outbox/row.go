package outbox

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/stepkey"
)

// A row is a stored or a held message.
type row struct {
	ID                                            int64
	MessageID                                     uuid.UUID
	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID, ContentType       string
	Headers                                       []byte
	Payload                                       []byte
	CreatedAt                                     time.Time
	Attempts                                      int // refusals so far

	leaf   int   // the leaf of the log where it is stored
	behind int64 // the held message of its ordering key when it was read from the log; 0: none
	held   bool  // it is in outbox_held
}

// scan reads the columns that every statement on messages returns, and then those of more.
func (m *row) scan(rows pgx.Rows, more ...any) error {
	return rows.Scan(append([]any{&m.ID, &m.MessageID, &m.Topic, &m.Type, &m.Scope, &m.Key, &m.Step, &m.N, &m.OrderingKey,
		&m.CorrelationID, &m.CausationID, &m.ContentType, &m.Headers, &m.Payload, &m.CreatedAt, &m.Attempts}, more...)...)
}

// message renders m as it goes over the wire. The step key is derived here
// from the stored parts.
func (m *row) message() (*message.Message, error) {
	msg := message.NewMessage(m.MessageID.String(), m.Payload)
	if len(m.Headers) > 0 {
		if err := json.Unmarshal(m.Headers, &msg.Metadata); err != nil {
			return nil, fmt.Errorf("outbox: stored headers of message %s: %w", msg.UUID, err)
		}
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata, 8)
	}
	msg.Metadata[HeaderKey] = stepkey.Key{Key: m.Key, Step: m.Step, N: m.N}.String()
	msg.Metadata[HeaderScope] = m.Scope
	if m.CausationID != "" {
		msg.Metadata[HeaderCausation] = m.CausationID
	}
	msg.Metadata[PropertyType] = m.Type
	if msg.Metadata[PropertyTimestamp] == "" { // a message that was delayed has one
		msg.Metadata[PropertyTimestamp] = m.CreatedAt.UTC().Format(time.RFC3339Nano)
	}
	msg.Metadata[PropertyCorrelation] = m.CorrelationID
	msg.Metadata[PropertyContentType] = m.ContentType
	return msg, nil
}
