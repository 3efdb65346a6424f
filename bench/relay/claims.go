package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/internal/backoff"
)

const (
	claimBatch   = 400
	claimWorkers = 8 // each with a separate channel
	claimPause   = 10 * time.Millisecond
)

// A claims is a job queue in PostgreSQL, as many programs have one. One transaction takes rows with a lease,
// workers publish them one by one outside of it, and another transaction marks them as done.
type claims struct {
	*place
	conn    *amqp.Connection
	senders []*private.Sender
}

func openClaims(ctx context.Context, p *place) (relay, error) {
	_, err := p.pool.Exec(ctx, `CREATE TABLE job (
		id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		state       text        NOT NULL DEFAULT 'available',
		attempt     integer     NOT NULL DEFAULT 0,
		lease_until timestamptz,
		message_id  uuid        NOT NULL,
		payload     bytea       NOT NULL,
		created_at  timestamptz NOT NULL DEFAULT clock_timestamp())`)
	if err == nil {
		_, err = p.pool.Exec(ctx, "CREATE INDEX job_state ON job (state, id)")
	}
	if err != nil {
		return nil, err
	}
	c := &claims{place: p}
	if c.conn, err = dialPeer(p); err != nil {
		return nil, err
	}
	for range claimWorkers {
		s, err := private.NewSender(c.conn, p.queue.Topic)
		if err != nil {
			return nil, errors.Join(err, c.closeRelay())
		}
		c.senders = append(c.senders, s)
	}
	return c, nil
}

func (c *claims) storeMessages(ctx context.Context, tx pgx.Tx, n int) error {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	_, err := tx.Exec(ctx, "INSERT INTO job (message_id, payload) SELECT unnest($1::uuid[]), $2", ids, payload)
	return err
}

func (c *claims) clearPublished(ctx context.Context) error {
	_, err := c.pool.Exec(ctx, "TRUNCATE job")
	return err
}

// A job is a claimed row.
type job struct {
	ID        int64
	MessageID uuid.UUID
	Payload   []byte
}

func (c *claims) publishAll(ctx context.Context, count *counter) error {
	for ctx.Err() == nil {
		rows, _ := c.relays.Query(ctx, `UPDATE job SET state = 'running', attempt = attempt + 1, lease_until = clock_timestamp() + interval '1 minute'
			WHERE id IN (SELECT id FROM job WHERE state = 'available' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING id, message_id, payload`, claimBatch)
		jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[job])
		if err == nil {
			err = c.workJobs(ctx, jobs, count)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		if len(jobs) < claimBatch {
			_ = backoff.Sleep(ctx, claimPause)
		}
	}
	return nil
}

// workJobs publishes jobs, each worker one by one, and marks them as done.
func (c *claims) workJobs(ctx context.Context, jobs []job, count *counter) error {
	var wg sync.WaitGroup
	faults := make([]error, claimWorkers)
	for w := range claimWorkers {
		wg.Go(func() {
			for i := w; i < len(jobs) && faults[w] == nil; i += claimWorkers {
				if faults[w] = c.publishJob(ctx, c.senders[w], &jobs[i]); faults[w] == nil {
					count.addConfirmed(1)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(faults...); err != nil || len(jobs) == 0 {
		return err
	}
	done := make([]int64, len(jobs))
	for i := range jobs {
		done[i] = jobs[i].ID
	}
	_, err := c.relays.Exec(ctx, "UPDATE job SET state = 'done', lease_until = NULL WHERE id = ANY($1)", done)
	return err
}

func (c *claims) publishJob(ctx context.Context, s *private.Sender, j *job) error {
	sent, err := s.Publish(ctx, publishing(c.queue.Topic, j.MessageID.String(), j.Payload))
	if err != nil {
		return err
	}
	return s.AwaitConfirm(ctx, sent)
}

func (c *claims) closeRelay() error {
	for _, s := range c.senders {
		s.Close()
	}
	return private.CloseConnection(c.conn)
}
