package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/outbox"
)

const (
	allClients   = 32 // clients that start sagas, in all processes together
	storeBatch   = 100
	storeWriters = 4
)

// repeatedJob returns a job as often as there are processes.
func repeatedJob(j job, processes int) []job {
	jobs := make([]job, processes)
	for i := range jobs {
		jobs[i] = j
	}
	return jobs
}

func consumers(p *place, _, processes int) []job {
	return repeatedJob(p.jobForRole("consume"), processes)
}

func lanesJobs(p *place, _, lanes int) []job {
	j := p.jobForRole("consume")
	j.Lanes = lanes
	return []job{j}
}

func outboxJobs(p *place, _, outboxes int) []job {
	jobs := repeatedJob(p.jobForRole("relay"), outboxes)
	for i := range jobs {
		jobs[i].Schemas = p.schemas[i : i+1]
	}
	return jobs
}

func relayLanes(p *place, _, lanes int) []job {
	j := p.jobForRole("relay")
	j.Lanes = lanes
	return []job{j}
}

func standbyJobs(p *place, _, relays int) []job { return repeatedJob(p.jobForRole("relay"), relays) }

func sagaJobs(p *place, n, processes int) []job {
	j := p.jobForRole("serve")
	j.Start, j.Clients = n/processes, allClients/processes
	return repeatedJob(j, processes)
}

// openQueue makes the place of consumers. The second topic is that of their follow-up messages, which stay in
// the outbox.
func openQueue(ctx context.Context, b *bench, s *private.Server, prefix string) (*place, error) {
	return b.createPlace(ctx, s, prefix, []string{"stock"}, []string{"placed", "reserved"})
}

func prepareQueue(ctx context.Context, p *place, n, _ int) error {
	if err := p.clearTables(ctx, "effect", "inbox", "parked", "outbox"); err != nil {
		return err
	}
	q := p.queues[0]
	return q.FillQueue(ctx, n, func() (amqp.Publishing, error) { return publishing(q.Topic) })
}

func checkQueue(ctx context.Context, p *place, n, _ int) error {
	return errors.Join(p.checkAcked(), p.checkCounts(ctx, p.schemas,
		count{"effect", n}, count{"inbox WHERE state = 'done'", n}, count{"outbox", n}, count{"parked", 0}))
}

// openOutboxes makes the place of relays. The second topic is for the messages that connect them.
func openOutboxes(ctx context.Context, b *bench, s *private.Server, prefix string) (*place, error) {
	return b.createPlace(ctx, s, prefix, []string{"a", "b", "c", "d"}, []string{"placed", "first"})
}

// prepareOutboxes stores the same number of messages in each outbox.
func prepareOutboxes(ctx context.Context, p *place, n, outboxes int) error {
	if err := p.clearTables(ctx); err != nil {
		return err
	}
	for _, schema := range p.schemas[:outboxes] {
		if err := p.storeMessages(ctx, schema, n/outboxes); err != nil {
			return err
		}
	}
	return nil
}

// prepareOutbox stores all messages in one outbox.
func prepareOutbox(ctx context.Context, p *place, n, _ int) error {
	return prepareOutboxes(ctx, p, n, 1)
}

// storeMessages writes n messages, each of another saga, into the outbox of schema. It closes its connections
// afterwards, because their commits must not count.
func (p *place) storeMessages(ctx context.Context, schema string, n int) error {
	config, err := poolConfig(p.server.URL, schema, storeWriters)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: schema})
	if err != nil {
		return err
	}
	var (
		writers sync.WaitGroup
		taken   atomic.Int64
		faults  = make([]error, storeWriters)
	)
	for i := range faults {
		writers.Go(func() {
			for faults[i] == nil {
				first := int(taken.Add(storeBatch)) - storeBatch
				if first >= n {
					return
				}
				messages := make([]outbox.Message, min(storeBatch, n-first))
				for k := range messages {
					messages[k] = randomOrder().outboxMessage(p.queues[0].Topic, stepNames[0])
				}
				faults[i] = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return writer.Write(ctx, tx, messages...) })
			}
		})
	}
	writers.Wait()
	_, err = pool.Exec(ctx, "VACUUM (ANALYZE) outbox") // the relay's plans depend on it
	return errors.Join(append(faults, err)...)
}

func checkOutboxes(ctx context.Context, p *place, n, _ int) error {
	return p.queues[0].CheckDepth(ctx, n)
}

// openServices makes the place of sagas: each service has a schema and follows one topic.
func openServices(ctx context.Context, b *bench, s *private.Server, prefix string) (*place, error) {
	return b.createPlace(ctx, s, prefix, []string{"payment", "shipping", "order"}, []string{"placed", "paid", "shipped"})
}

// prepareServices does not clear the outboxes: relays keep their progress.
func prepareServices(ctx context.Context, p *place, _, _ int) error {
	return p.clearTables(ctx, "effect", "placed", "inbox", "parked")
}

func checkServices(ctx context.Context, p *place, n, _ int) error {
	last := p.schemas[len(p.schemas)-1:]
	return errors.Join(p.checkAcked(), p.checkCounts(ctx, last, count{"placed", n}),
		p.checkCounts(ctx, p.schemas, count{"effect", n}, count{"inbox WHERE state = 'done'", n}, count{"parked", 0}))
}
