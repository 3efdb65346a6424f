package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/bench/internal/goodhand"
	"github.com/sagamill/sagamill/bench/internal/private"
)

const (
	goodConns    = 16 // of each service
	goodChannels = 8  // of each step
	goodPrefetch = 32 // of each channel
)

// A good is the saga as an experienced engineer writes it by hand for one program.
type good struct {
	*place
	nodes map[string]*goodNode
}

// A goodNode is one service. Its relay is that of the slice.
type goodNode struct {
	pool             *pgxpool.Pool
	publish, consume *amqp.Connection
	relay            *goodhand.Relay
}

func openGood(ctx context.Context, p *place) (way, error) {
	g := &good{place: p, nodes: map[string]*goodNode{}}
	for _, service := range services {
		if err := g.openNode(ctx, service); err != nil {
			return nil, errors.Join(err, g.closeWay())
		}
	}
	return g, nil
}

func (g *good) openNode(ctx context.Context, service string) (err error) {
	n := &goodNode{}
	if n.pool, err = g.connectPool(ctx, goodConns, g.schemaName(service)); err != nil {
		return err
	}
	g.nodes[service] = n
	for _, statement := range goodhand.Tables {
		if _, err := n.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if n.publish, err = g.broker.DialConnection(); err == nil {
		n.consume, err = g.broker.DialConnection()
	}
	return err
}

func (g *good) closeWay() error {
	var faults []error
	for _, n := range g.nodes {
		n.pool.Close()
		for _, conn := range []*amqp.Connection{n.publish, n.consume} {
			if conn != nil {
				faults = append(faults, private.CloseConnection(conn))
			}
		}
	}
	return errors.Join(faults...)
}

func (g *good) clearSagas(ctx context.Context) error { return g.truncateTables(ctx, "outbox", "inbox") }

func (g *good) checkEffects(ctx context.Context, n int) error {
	counts := append(g.countsEach("inbox", n), g.countsHandled("inbox", "h.key = e.order_id || ':%s'", n)...)
	return g.place.checkCounts(ctx, n, append(counts, g.countsEach("outbox", 0)...)...)
}

func (g *good) runServices(ctx context.Context, done func(string), fail func(error)) (func() error, error) {
	var (
		relays sync.WaitGroup
		stops  []func() error
	)
	ctx, cancel := context.WithCancel(ctx)
	stop := func() error {
		var faults []error
		for _, f := range stops {
			faults = append(faults, f())
		}
		cancel()
		relays.Wait()
		return errors.Join(faults...)
	}
	for _, n := range g.nodes {
		relay, err := goodhand.NewRelay(n.pool, n.publish)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		n.relay = relay
		relays.Go(func() {
			if err := relay.Run(ctx); err != nil {
				fail(err)
			}
		})
	}
	for _, st := range steps {
		queue := g.config.Queue.GenerateName(g.topicName(st.topic))
		end, err := goodhand.Consume(ctx, g.nodes[st.service].consume, queue, goodChannels, goodPrefetch, g.stepHandler(st, done), fail)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		stops = append(stops, end)
	}
	return stop, nil
}

func (g *good) stepHandler(st step, done func(string)) goodhand.Handler {
	n := g.nodes[st.service]
	return func(ctx context.Context, key string, d *amqp.Delivery) error {
		var o order
		if err := json.Unmarshal(d.Body, &o); err != nil {
			return err
		}
		var follow *goodhand.Message
		if st.follows != "" {
			follow = &goodhand.Message{
				Topic: g.topicName(st.follows), Key: o.OrderID + ":" + st.after, Correlation: o.OrderID, Causation: d.MessageId, Payload: d.Body,
			}
		}
		effect := func(batch *pgx.Batch) { batch.Queue(st.effect.sql, st.effect.values(&o)...) }
		if err := goodhand.HandleOnce(ctx, n.pool, key, effect, follow); err != nil {
			return err
		}
		if follow != nil {
			n.relay.Wake()
		} else {
			done(o.OrderID)
		}
		return nil
	}
}

// startSaga writes the order and the first message in one round trip, which pgx makes a transaction.
func (g *good) startSaga(ctx context.Context, o *order) error {
	n, batch := g.nodes[serviceOrder], &pgx.Batch{}
	batch.Queue(placement.sql, placement.values(o)...)
	goodhand.QueueMessage(batch, &goodhand.Message{
		Topic: g.topicName(orderCreated), Key: o.OrderID + ":" + stepPay, Correlation: o.OrderID, Payload: o.payload(),
	})
	err := n.pool.SendBatch(ctx, batch).Close()
	if err == nil {
		n.relay.Wake()
	}
	return err
}

func (g *good) String() string {
	return fmt.Sprintf("amqp091-go and pgx, relays that commits wake, channels of each step %d, prefetch %d each, connections of each service %d", goodChannels, goodPrefetch, goodConns)
}
