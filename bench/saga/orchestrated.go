package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/saga"
)

// An orchestrated is the saga with package saga. Service order starts and
// orchestrates it; the other two are participants.
type orchestrated struct {
	*choreographed
	plan    *saga.Definition[order]
	starter *saga.Starter[order]
}

func openOrchestrated(style style) func(context.Context, *place) (way, error) {
	return func(ctx context.Context, p *place) (way, error) {
		inner, err := openChoreographed(style)(ctx, p)
		if err != nil {
			return nil, err
		}
		o := &orchestrated{choreographed: inner.(*choreographed)}
		if err := o.defineSaga(); err != nil {
			return nil, errors.Join(err, o.closeWay())
		}
		return o, nil
	}
}

func (o *orchestrated) defineSaga() (err error) {
	body := func(s *order) order { return *s }
	o.plan, err = saga.Define(o.sagaName(), 1,
		saga.Step[order]{Name: stepPay, Do: saga.Remote[order, order, any](o.topicName(orderCreated), body, nil)},
		saga.Step[order]{Name: stepShip, Do: saga.Remote[order, order, any](o.topicName(paymentProcessed), body, nil)},
		saga.Step[order]{Name: stepComplete, Do: saga.Local(o.completeSaga)},
	)
	if err == nil {
		o.starter, err = saga.NewStarter(o.plan, &saga.StarterOptions{Schema: o.schemaName(serviceOrder)})
	}
	return err
}

func (o *orchestrated) completeSaga(ctx context.Context, tx pgx.Tx, turn saga.Turn, s *order) (err error) {
	if o.style == insertQueued {
		turn.Queue(completion.sql, completion.values(s)...)
	} else {
		_, err = tx.Exec(ctx, completion.sql, completion.values(s)...)
	}
	return err
}

func (o *orchestrated) clearSagas(ctx context.Context) error {
	return o.truncateTables(ctx, "inbox", "parked", "saga")
}

func (o *orchestrated) checkEffects(ctx context.Context, n int) error {
	return o.place.checkCounts(ctx, n,
		count{o.schemaName(servicePayment) + ".inbox WHERE state = 'done'", n}, count{o.schemaName(serviceShipping) + ".inbox WHERE state = 'done'", n},
		count{o.schemaName(serviceOrder) + ".inbox WHERE state = 'done'", 2 * n}, count{o.schemaName(serviceOrder) + ".saga WHERE status = 'completed'", n})
}

func (o *orchestrated) startSaga(ctx context.Context, one *order) error {
	n := o.nodes[serviceOrder]
	if o.style == insertQueued {
		batch := &pgx.Batch{}
		batch.Queue(placement.sql, placement.values(one)...)
		_, err := o.starter.Queue(ctx, batch, saga.ID{Scope: scope, Key: one.OrderID}, *one)
		if err == nil {
			err = n.pool.SendBatch(ctx, batch).Close()
		}
		n.relay.Wake()
		return err
	}
	err := pgx.BeginFunc(ctx, n.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, placement.sql, placement.values(one)...); err != nil {
			return err
		}
		_, err := o.starter.Start(ctx, tx, saga.ID{Scope: scope, Key: one.OrderID}, *one)
		return err
	})
	if err == nil {
		n.relay.Wake()
	}
	return err
}

// runServices runs every service's relay and consumer until stop is called.
func (o *orchestrated) runServices(ctx context.Context, done func(string), fail func(error)) (func() error, error) {
	return o.choreographed.serveNodes(ctx, fail, func(n *node, st step) (runner, error) {
		if st.follows == "" {
			return o.orchestrator(n, done)
		}
		one := saga.Participant(consumer.Step{Name: st.name, Action: saga.On(o.topicName(st.topic), o.insertHandler(st))})
		return consumer.New(n.pool, n.sub, []consumer.Step{one}, &consumer.Options{Schema: o.schemaName(n.service), Wake: n.relay.Wake})
	})
}

func (o *orchestrated) orchestrator(n *node, done func(string)) (runner, error) {
	return saga.NewOrchestrator(n.pool, n.sub, []saga.Plan{o.plan}, &saga.Options{
		Schema: o.schemaName(n.service), Wake: n.relay.Wake, Consumer: consumer.Options{Observer: observeSecond(done)},
	})
}

// insertHandler is the handler of a participant.
func (o *orchestrated) insertHandler(st step) saga.Handler[order, struct{}] {
	return func(ctx context.Context, tx pgx.Tx, in consumer.Message[order]) (_ struct{}, err error) {
		if o.style == insertQueued {
			in.Queue(st.effect.sql, st.effect.values(&in.Body)...)
		} else {
			_, err = tx.Exec(ctx, st.effect.sql, st.effect.values(&in.Body)...)
		}
		return struct{}{}, err
	}
}

// observeSecond returns an observer that reports an order at its second reply, which ends the saga.
func observeSecond(done func(string)) consumer.Observer {
	var (
		mu   sync.Mutex
		seen = map[string]bool{}
	)
	return finish(func(key string) {
		mu.Lock()
		last := seen[key]
		seen[key] = true
		mu.Unlock()
		if last {
			done(key)
		}
	})
}

func (o *orchestrated) String() string {
	return fmt.Sprintf("packages saga, outbox, consumer and rabbitmq at their defaults, connections of each service %d, a row is %s", oursConns, o.style)
}
