package byhand

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/outbox"
)

// SQLIndexUnpublished creates the index with which a relay reads the outbox.
const SQLIndexUnpublished = `CREATE INDEX outbox_unpublished ON outbox (id) WHERE published_at IS NULL`

const (
	sqlUnpublished = `
SELECT id, message_id, topic, type, key, correlation_id, headers, payload FROM outbox
WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`

	sqlPublished = `UPDATE outbox SET published_at = now() WHERE id = ANY($1)`
)

// A Relay polls an outbox: it locks rows, publishes them one by one, marks them
// and commits.
type Relay struct {
	Pool      *pgxpool.Pool
	Publisher message.Publisher
	Batch     int           // rows in one transaction
	Pause     time.Duration // after less than a full batch
}

// A row is a row of the outbox.
type row struct {
	ID                     int64
	MessageID              uuid.UUID
	Topic, Type, Key, Saga string
	Headers                []byte
	Payload                []byte
}

// Run publishes until ctx ends or an error occurs.
func (r *Relay) Run(ctx context.Context) error {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n, err := r.runPass(context.WithoutCancel(ctx))
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		pause := r.Pause
		if n == r.Batch {
			pause = 0
		}
		tick.Reset(pause)
	}
}

// runPass publishes one batch and returns how many messages were in it.
func (r *Relay) runPass(ctx context.Context) (n int, err error) {
	err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		found, _ := tx.Query(ctx, sqlUnpublished, r.Batch)
		rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
		if n = len(rows); err != nil || n == 0 {
			return err
		}
		ids := make([]int64, n)
		for i := range rows {
			if err := r.publishRow(&rows[i]); err != nil {
				return err
			}
			ids[i] = rows[i].ID
		}
		_, err = tx.Exec(ctx, sqlPublished, ids)
		return err
	})
	return n, err
}

func (r *Relay) publishRow(row *row) error {
	msg := message.NewMessage(row.MessageID.String(), row.Payload)
	if err := json.Unmarshal(row.Headers, &msg.Metadata); err != nil {
		return err
	}
	msg.Metadata.Set(outbox.HeaderKey, row.Key)
	msg.Metadata.Set(metaID, msg.UUID)
	msg.Metadata.Set(metaCorrelation, row.Saga)
	msg.Metadata.Set(outbox.PropertyType, row.Type)
	return r.Publisher.Publish(row.Topic, msg)
}
