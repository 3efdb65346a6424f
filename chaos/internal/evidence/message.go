package evidence

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// messageColumns are the columns that a leaf, outbox_held and chaos.delayed share.
const messageColumns = "id, message_id, topic, type, scope, key, step, n, ordering_key, correlation_id, causation_id, content_type, headers, payload, created_at"

// loggedColumns are messageColumns of the log m, whose rows leave out what follows from other columns.
const loggedColumns = "id, message_id, topic, " + outboxsql.LoggedType + " AS type, scope, key, step, n, " + outboxsql.LoggedOrderingKey + " AS ordering_key, " +
	outboxsql.LoggedCorrelation + " AS correlation_id, causation_id, " + outboxsql.LoggedContentType + " AS content_type, headers, payload, created_at"

// bindSchema inserts the name of a schema into statement.
func bindSchema(schema, statement string) string {
	return strings.ReplaceAll(statement, "{schema}", schema)
}

// A stored message was written by a service's transaction.
type stored struct {
	ID                                            int64
	MessageID                                     uuid.UUID
	Topic, Type, Scope, Key, Step, N, OrderingKey string
	CorrelationID, CausationID, ContentType       string
	Headers                                       []byte
	Payload                                       []byte
	CreatedAt                                     time.Time
}

func scanStored(row pgx.CollectableRow) (m stored, err error) {
	err = row.Scan(&m.ID, &m.MessageID, &m.Topic, &m.Type, &m.Scope, &m.Key, &m.Step, &m.N, &m.OrderingKey,
		&m.CorrelationID, &m.CausationID, &m.ContentType, &m.Headers, &m.Payload, &m.CreatedAt)
	return m, err
}

// publication returns m exactly as its relay publishes it, byte for byte.
func (m *stored) publication() (outbox.Publication, error) {
	msg := message.NewMessage(m.MessageID.String(), m.Payload)
	if len(m.Headers) > 0 {
		if err := json.Unmarshal(m.Headers, &msg.Metadata); err != nil {
			return outbox.Publication{}, fmt.Errorf("evidence: headers of message %s: %w", msg.UUID, err)
		}
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[outbox.HeaderKey] = stepkey.Key{Key: m.Key, Step: m.Step, N: m.N}.String()
	msg.Metadata[outbox.HeaderScope] = m.Scope
	if m.CausationID != "" {
		msg.Metadata[outbox.HeaderCausation] = m.CausationID
	}
	msg.Metadata[outbox.PropertyType] = m.Type
	if msg.Metadata[outbox.PropertyTimestamp] == "" { // it was not delayed
		msg.Metadata[outbox.PropertyTimestamp] = m.CreatedAt.UTC().Format(time.RFC3339Nano)
	}
	msg.Metadata[outbox.PropertyCorrelation] = m.CorrelationID
	msg.Metadata[outbox.PropertyContentType] = m.ContentType
	return outbox.Publication{Topic: m.Topic, Message: msg}, nil
}

const sqlReadMessages = `
SELECT {logged} FROM {schema}.outbox m WHERE id = ANY ($1)
UNION ALL
SELECT {columns} FROM chaos.delayed WHERE schema = '{schema}' AND id = ANY ($1)`

// readMessages reads the existing messages among ids, in no order.
func readMessages(ctx context.Context, db *pgxpool.Pool, s schema, ids []int64) ([]stored, error) {
	rows, _ := db.Query(ctx, strings.NewReplacer("{columns}", messageColumns, "{logged}", loggedColumns).Replace(bindSchema(s.name, sqlReadMessages)), ids)
	all, err := pgx.CollectRows(rows, scanStored)
	if err != nil {
		return nil, fmt.Errorf("evidence: messages of %s: %w", s.name, err)
	}
	return all, nil
}
