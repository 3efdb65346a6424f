package byhand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/outbox"
)

// Tables create a service's tables, in the first schema of the search path.
var Tables = []string{`
CREATE TABLE processed_message (
	key          text        PRIMARY KEY,
	processed_at timestamptz NOT NULL DEFAULT now())`, `
CREATE TABLE outbox (
	id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id     uuid        NOT NULL,
	topic          text        NOT NULL,
	type           text        NOT NULL,
	key            text        NOT NULL,
	correlation_id text        NOT NULL,
	headers        jsonb       NOT NULL,
	payload        bytea       NOT NULL,
	created_at     timestamptz NOT NULL DEFAULT now(),
	published_at   timestamptz)`,
}

const (
	sqlFindKey = `SELECT processed_at FROM processed_message WHERE key = $1 FOR UPDATE`
	sqlFollow  = `INSERT INTO outbox (message_id, topic, type, key, correlation_id, headers, payload) VALUES ($1, $2, $3, $4, $5, $6, $7)`
	sqlAddKey  = `INSERT INTO processed_message (key) VALUES ($1)`
)

// A Message is published after its transaction has committed.
type Message struct {
	Topic       string
	Scope, Key  string
	Correlation string
	Causation   string // the message that led to this one; "" for a saga's first
	Payload     []byte
}

// WriteMessage stores m in tx.
func WriteMessage(ctx context.Context, tx pgx.Tx, m Message) error {
	headers := map[string]string{outbox.HeaderScope: m.Scope}
	if m.Causation != "" {
		headers[outbox.HeaderCausation] = m.Causation
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sqlFollow, uuid.New(), m.Topic, m.Topic, m.Key, m.Correlation, text, m.Payload)
	return err
}

// HandleOnce handles msg in a transaction, unless it was handled before. The transaction makes the effect and
// stores a follow-up message on topic under key; with topic "" it stores none. With an effect of one statement
// these are six round trips: begin, look the key up, effect, outbox row, key, commit.
func HandleOnce(ctx context.Context, pool *pgxpool.Pool, msg *message.Message, effect func(pgx.Tx) error, topic, key string) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	own := msg.Metadata.Get(outbox.HeaderKey)
	switch err := tx.QueryRow(ctx, sqlFindKey, own).Scan(nil); {
	case err == nil:
		return nil // handled before
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	if err := effect(tx); err != nil {
		return err
	}
	if topic != "" {
		err := WriteMessage(ctx, tx, Message{
			Topic: topic, Scope: msg.Metadata.Get(outbox.HeaderScope), Key: key, Payload: msg.Payload,
			Correlation: msg.Metadata.Get(metaCorrelation), Causation: msg.Metadata.Get(metaID),
		})
		if err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, sqlAddKey, own); err != nil {
		return fmt.Errorf("add key: %w", err)
	}
	return tx.Commit(ctx)
}
