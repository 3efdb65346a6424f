package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/outbox"
)

// A node is one service in this process: a relay and a consumer.
type node struct {
	pool     *pgxpool.Pool
	relay    *outbox.Relay
	consumer *consumer.Consumer
	gate     *gate
}

// runServices runs a node for each schema, and starts sagas.
func (d *desk) runServices(ctx context.Context) (err error) {
	publisher, err := d.newPublisher()
	if err != nil {
		return err
	}
	var nodes []*node
	defer func() {
		for _, n := range nodes {
			n.pool.Close()
			err = errors.Join(err, n.gate.Close())
		}
		err = errors.Join(err, publisher.Close())
	}()
	for i := range d.Schemas {
		n, err := d.openNode(ctx, i, publisher)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		running sync.WaitGroup
		faults  = make([]error, 2*len(nodes))
	)
	defer running.Wait()
	defer cancel()
	for i, n := range nodes {
		for k, run := range []func(context.Context) error{n.relay.Run, n.consumer.Run} {
			running.Go(func() {
				defer cancel()
				faults[2*i+k] = run(ctx)
			})
		}
	}
	for _, n := range nodes {
		awaitDone(ctx, n.gate.subscribed)
	}
	if err = d.reportReady(ctx); err == nil {
		err = d.beginNode(ctx, nodes[len(nodes)-1])
	}
	if err == nil {
		<-ctx.Done()
	}
	cancel()
	running.Wait()
	return errors.Join(append(faults, err)...)
}

func (d *desk) openNode(ctx context.Context, i int, publisher outbox.Publisher) (n *node, err error) {
	n = &node{}
	if n.pool, err = d.connectPool(ctx, d.Schemas[i], serviceConns); err != nil {
		return nil, err
	}
	opts := &consumer.Options{}
	if n.relay, err = outbox.NewRelay(n.pool, publisher, &outbox.RelayOptions{Schema: d.Schemas[i]}); err == nil {
		opts.Wake = n.relay.Wake
		if i == len(d.Schemas)-1 {
			opts.Observer = finish{&d.done}
		}
		n.consumer, n.gate, err = d.newConsumer(n.pool, i, opts)
	}
	if err != nil {
		n.pool.Close()
		return nil, err
	}
	return n, nil
}

// beginNode starts this worker's share of the sagas. Each start is one round trip, which pgx makes a
// transaction.
func (d *desk) beginNode(ctx context.Context, n *node) error {
	writer, err := outbox.NewWriter(&outbox.WriterOptions{Schema: d.Schemas[len(d.Schemas)-1]})
	if err != nil {
		return err
	}
	var (
		clients sync.WaitGroup
		begun   atomic.Int64
		faults  = make([]error, d.Clients)
	)
	for i := range faults {
		clients.Go(func() {
			for faults[i] == nil && begun.Add(1) <= int64(d.Start) {
				o, batch := randomOrder(), &pgx.Batch{}
				batch.Queue(sqlAddPlaced, o.columnValues()...)
				if faults[i] = writer.Queue(ctx, batch, o.outboxMessage(d.Topics[0], stepNames[0])); faults[i] == nil {
					faults[i] = n.pool.SendBatch(ctx, batch).Close()
				}
				n.relay.Wake()
			}
		})
	}
	clients.Wait()
	return errors.Join(faults...)
}
