package goodhand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	relayBatch = 500         // messages in one transaction
	relayPoll  = time.Second // for the rows of a process that died
)

// A Relay publishes an outbox.
type Relay struct {
	pool     *pgxpool.Pool
	ch       *amqp.Channel
	wake     chan struct{}
	returned atomic.Int64 // messages that the broker had no queue for
	watch    sync.WaitGroup
}

// A row is a row of the outbox.
type row struct {
	ID                         int64
	MessageID                  uuid.UUID
	Topic, Key, Saga, Causedby string
	Payload                    []byte
}

// NewRelay opens a channel of conn in confirm mode. [Relay.Run] closes it.
func NewRelay(pool *pgxpool.Pool, conn *amqp.Connection) (*Relay, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	r := &Relay{pool: pool, ch: ch, wake: make(chan struct{}, 1)}
	returns := ch.NotifyReturn(make(chan amqp.Return, relayBatch))
	r.watch.Go(func() { // ends with the channel
		for range returns {
			r.returned.Add(1)
		}
	})
	return r, nil
}

// Wake tells the relay of a commit.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends or an error occurs.
func (r *Relay) Run(ctx context.Context) (err error) {
	defer func() {
		err = errors.Join(err, r.ch.Close())
		r.watch.Wait()
	}()
	poll := time.NewTicker(relayPoll)
	defer poll.Stop()
	for {
		n, err := r.runPass(context.WithoutCancel(ctx))
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		if n == relayBatch {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-poll.C:
		}
	}
}

// runPass publishes one batch and returns how many messages were in it. It commits when all are confirmed.
func (r *Relay) runPass(ctx context.Context) (n int, err error) {
	err = pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		found, _ := tx.Query(ctx, sqlTakeMessages, relayBatch) // CollectRows returns the error
		rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
		if n = len(rows); err != nil || n == 0 {
			return err
		}
		slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.ID, b.ID) })
		return r.publishRows(ctx, rows)
	})
	return n, err
}

// publishRows publishes rows and waits for their confirms.
func (r *Relay) publishRows(ctx context.Context, rows []row) error {
	sent := make([]*amqp.DeferredConfirmation, len(rows))
	for i := range rows {
		p := amqp.Publishing{
			MessageId: rows[i].MessageID.String(), CorrelationId: rows[i].Saga, Type: rows[i].Topic, Body: rows[i].Payload,
			ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
			Headers: amqp.Table{headerKey: rows[i].Key, headerCausation: rows[i].Causedby},
		}
		var err error
		if sent[i], err = r.ch.PublishWithDeferredConfirmWithContext(ctx, rows[i].Topic, "", true, false, p); err != nil {
			return err
		}
	}
	for _, one := range sent {
		ok, err := one.WaitContext(ctx)
		if err == nil && !ok {
			err = errors.New("a message was nacked")
		}
		if err != nil {
			return err
		}
	}
	if r.returned.Load() > 0 {
		return errors.New("a message was returned")
	}
	return nil
}
