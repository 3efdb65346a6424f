package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const oursConns = 16 // of each service

// A style is how a handler inserts its row.
type style string

const (
	insertNow    style = "a statement in the transaction"
	insertQueued style = "a statement that travels with COMMIT, a start one round trip"
)

// A choreographed is the saga with packages outbox and consumer: each service reacts to the previous one's
// messages, as in the order example.
type choreographed struct {
	*place
	style     style
	publisher *rabbitmq.Publisher
	writer    *outbox.Writer // of service order
	nodes     map[string]*node
}

// A node is one service. Its relay and its subscriber are those of the slice.
type node struct {
	service string
	pool    *pgxpool.Pool
	relay   *outbox.Relay
	sub     *rabbitmq.Subscriber
}

func openChoreographed(s style) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (_ way, err error) {
		c := &choreographed{place: p, style: s, nodes: map[string]*node{}}
		if c.publisher, err = rabbitmq.NewPublisher(p.config, nil); err != nil {
			return nil, err
		}
		if c.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: p.schemaName(serviceOrder)}); err != nil {
			return nil, err
		}
		for _, service := range services {
			if err := migrations.Up(ctx, p.server.URL, p.schemaName(service)); err != nil {
				return nil, errors.Join(err, c.closeWay())
			}
			pool, err := p.connectPool(ctx, oursConns, p.schemaName(service))
			if err != nil {
				return nil, errors.Join(err, c.closeWay())
			}
			c.nodes[service] = &node{service: service, pool: pool}
		}
		return c, nil
	}
}

func (c *choreographed) closeWay() error {
	for _, n := range c.nodes {
		n.pool.Close()
	}
	return c.publisher.Close()
}

func (c *choreographed) clearSagas(ctx context.Context) error {
	return c.truncateTables(ctx, "inbox", "parked")
}

func (c *choreographed) checkEffects(ctx context.Context, n int) error {
	counts := append(c.countsEach("inbox", n), c.countsHandled("inbox", "(h.key, h.step, h.state) = (e.order_id::text, '%s', 'done')", n)...)
	return c.place.checkCounts(ctx, n, append(counts, c.countsEach("parked", 0)...)...)
}

// startSaga writes the order and the first message of the saga. It uses a transaction as people write it, or
// one round trip, which pgx makes a transaction too.
func (c *choreographed) startSaga(ctx context.Context, o *order) error {
	batch := &pgx.Batch{}
	batch.Queue(placement.sql, placement.values(o)...)
	err := c.writer.Queue(ctx, batch, outbox.Message{Topic: c.topicName(orderCreated), Scope: scope, Key: o.OrderID, Step: stepPay, Payload: o.payload()})
	if err != nil {
		return err
	}
	n := c.nodes[serviceOrder]
	if c.style == insertQueued {
		err = n.pool.SendBatch(ctx, batch).Close()
	} else {
		err = pgx.BeginFunc(ctx, n.pool, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	}
	if err == nil {
		n.relay.Wake()
	}
	return err
}

// A runner handles a service's messages.
type runner interface {
	Run(ctx context.Context) error
}

// runServices runs every service's relay and consumer until stop is called.
func (c *choreographed) runServices(ctx context.Context, done func(string), fail func(error)) (func() error, error) {
	return c.serveNodes(ctx, fail, func(n *node, st step) (runner, error) {
		options := &consumer.Options{Schema: c.schemaName(n.service), Wake: n.relay.Wake}
		if st.follows == "" {
			options.Observer = finish(done)
		}
		one := consumer.Step{Name: st.name, Action: consumer.On(c.topicName(st.topic), c.stepHandler(st))}
		return consumer.New(n.pool, n.sub, []consumer.Step{one}, options)
	})
}

// serveNodes runs a relay and the result of build for each service.
func (c *choreographed) serveNodes(ctx context.Context, fail func(error), build func(*node, step) (runner, error)) (func() error, error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	stop := func() error {
		cancel()
		running.Wait()
		var faults []error
		for _, n := range c.nodes {
			if n.sub != nil {
				faults = append(faults, n.sub.Close())
			}
		}
		return errors.Join(faults...)
	}
	for _, st := range steps {
		n := c.nodes[st.service]
		handler, err := c.connectNode(n, st, build)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		for _, run := range []func(context.Context) error{n.relay.Run, handler.Run} {
			running.Go(func() {
				if err := run(ctx); err != nil {
					fail(fmt.Errorf("service %s: %w", n.service, err))
				}
			})
		}
	}
	return stop, nil
}

// connectNode opens n's relay and subscriber and returns the runner that build makes of them.
func (c *choreographed) connectNode(n *node, st step, build func(*node, step) (runner, error)) (_ runner, err error) {
	if n.relay, err = outbox.NewRelay(n.pool, c.publisher, &outbox.RelayOptions{Schema: c.schemaName(n.service)}); err != nil {
		return nil, err
	}
	if n.sub, err = rabbitmq.NewSubscriber(c.config, nil); err != nil {
		return nil, err
	}
	return build(n, st)
}

func (c *choreographed) stepHandler(st step) consumer.Handler[order] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[order], emit consumer.Emit) error {
		if c.style == insertQueued {
			in.Queue(st.effect.sql, st.effect.values(&in.Body)...)
		} else if _, err := tx.Exec(ctx, st.effect.sql, st.effect.values(&in.Body)...); err != nil {
			return err
		}
		if st.follows != "" {
			emit(outbox.Message{Topic: c.topicName(st.follows), Step: st.after, Payload: in.Payload})
		}
		return nil
	}
}

// A finish is an observer that is called for each saga after its last step's commit.
type finish func(id string)

func (finish) Enter(context.Context, *consumer.Delivery) consumer.Entry { return nil }
func (finish) Ended(context.Context, consumer.Transaction)              {}

func (f finish) Observe(_ context.Context, e consumer.Event) {
	if e.Outcome == consumer.OutcomeDone {
		f(e.Delivery.Key)
	}
}

func (c *choreographed) String() string {
	return fmt.Sprintf("packages outbox, consumer and rabbitmq at their defaults, connections of each service %d, a row is %s", oursConns, c.style)
}
