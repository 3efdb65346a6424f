package goodhand

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tables create a service's tables, in the first schema of the search path.
var Tables = []string{`
CREATE TABLE inbox (
	key        text        PRIMARY KEY,
	handled_at timestamptz NOT NULL DEFAULT now())`, `
CREATE TABLE outbox (
	id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id     uuid        NOT NULL,
	topic          text        NOT NULL,
	key            text        NOT NULL,
	correlation_id text        NOT NULL,
	causation_id   text        NOT NULL,
	payload        bytea       NOT NULL,
	created_at     timestamptz NOT NULL DEFAULT now())`,
}

const (
	// sqlClaimKey inserts nothing if the message was handled before. It waits for a concurrent handler of the
	// same message.
	sqlClaimKey = `INSERT INTO inbox (key) VALUES ($1) ON CONFLICT DO NOTHING`

	sqlAddMessage = `
INSERT INTO outbox (message_id, topic, key, correlation_id, causation_id, payload) VALUES ($1, $2, $3, $4, $5, $6)`

	// sqlTakeMessages deletes a batch of messages. If the transaction rolls back they are there again. Rows that
	// another relay has taken are skipped.
	sqlTakeMessages = `
DELETE FROM outbox WHERE id = ANY (ARRAY (SELECT id FROM outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING id, message_id, topic, key, correlation_id, causation_id, payload`
)

// A Message is published after its transaction has committed.
type Message struct {
	Topic       string
	Key         string // by which its consumer recognizes a duplicate
	Correlation string
	Causation   string // the message that led to this one; "" for a saga's first
	Payload     []byte
}

// QueueMessage adds the statement that stores m to batch.
func QueueMessage(batch *pgx.Batch, m *Message) {
	batch.Queue(sqlAddMessage, uuid.New(), m.Topic, m.Key, m.Correlation, m.Causation, m.Payload)
}

// errHandled rolls back a transaction whose message was handled before.
var errHandled = errors.New("the message was handled before")

// HandleOnce commits what effect queues, and follow unless it is nil, unless the message with that key was handled
// before. It takes three round trips: begin, all statements, commit. After an error nothing is committed.
func HandleOnce(ctx context.Context, pool *pgxpool.Pool, key string, effect func(*pgx.Batch), follow *Message) error {
	batch := &pgx.Batch{}
	batch.Queue(sqlClaimKey, key)
	effect(batch)
	if follow != nil {
		QueueMessage(batch, follow)
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		results := tx.SendBatch(ctx, batch)
		claimed, err := results.Exec()
		if err == nil && claimed.RowsAffected() == 0 {
			_ = results.Close() // ignored: the effect may fail because it is there already
			return errHandled
		}
		return errors.Join(err, results.Close())
	})
	if errors.Is(err, errHandled) {
		return nil
	}
	return err
}
