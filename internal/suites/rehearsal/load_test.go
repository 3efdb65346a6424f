package rehearsal

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	customers   = 6   // each places its orders one after the other
	inFullSwing = 150 // acknowledged orders after which a fault strikes
	afterwards  = 25  // orders of each customer when the fault is over

	orderPause = 10 * time.Millisecond // between a customer's orders

	// attemptLimit is how long a request waits for the database before it is tried again.
	attemptLimit = 3 * time.Second
	retryPause   = 20 * time.Millisecond
)

const (
	sqlCreateRequest = `CREATE TABLE {schema}.request (customer text, n int, tries int NOT NULL DEFAULT 1, PRIMARY KEY (customer, n))`
	sqlCreatePayment = `CREATE TABLE {schema}.payment (id bigserial PRIMARY KEY, customer text NOT NULL, n int NOT NULL)`

	// sqlPlaceRequest writes in every try. Without that, a try that finds the row of an
	// earlier one would commit at once, although the row may wait for the standby still.
	sqlPlaceRequest = `
INSERT INTO {schema}.request (customer, n) VALUES ($1, $2)
ON CONFLICT (customer, n) DO UPDATE SET tries = request.tries + 1
RETURNING tries`

	sqlListRequests = `SELECT customer, array_agg(n ORDER BY n) FROM {schema}.request GROUP BY customer ORDER BY customer`
	sqlListPayments = `SELECT customer, array_agg(n ORDER BY id) FROM {schema}.payment GROUP BY customer ORDER BY customer`
)

// A load is customers who place orders, a relay that publishes them over RabbitMQ, and a
// consumer that handles them, each customer's in their order. All share one database.
type load struct {
	orders, payments *shop
	writer           *outbox.Writer
	relay            *relaying

	acknowledged, failed atomic.Int32 // orders that are; tries that failed
	over                 atomic.Bool  // the fault is
	customers            sync.WaitGroup
	bought               [customers]int // orders of each customer, once they have ended
}

// newLoad makes the tables at url, and has all of the load reach them by pool.
func newLoad(t *testing.T, url string, pool *pgxpool.Pool) *load {
	t.Helper()
	l := &load{orders: newShop(t, url, "orders"), payments: newShop(t, url, "payments")}
	l.orders.exec(t, sqlCreateRequest)
	l.payments.exec(t, sqlCreatePayment)
	l.orders.pool, l.payments.pool = pool, pool
	var err error
	if l.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: l.orders.schema}); err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs relay, consumer and customers, which end with the test.
func (l *load) start(t *testing.T) {
	t.Helper()
	config, err := rabbitmq.NewConfig(rabbittest.URL(), l.payments.name, &rabbitmq.ConfigOptions{Prefix: rabbittest.Name()})
	if err != nil {
		t.Fatal(err)
	}
	queue := config.Queue.GenerateName(placed)
	rabbittest.Delete(t, []string{queue, queue + ".dead"}, []string{config.Exchange.GenerateName(placed)})
	if err := rabbitmq.DeclareTopology(t.Context(), config, placed); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	publisher, err := rabbitmq.NewPublisher(config, &rabbitmq.PublisherOptions{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = publisher.Close() })
	subscriber, err := rabbitmq.NewSubscriber(config, &rabbitmq.SubscriberOptions{Key: outbox.SagaKey, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = subscriber.Close() })
	step := consumer.Step{Name: "handle", Action: consumer.On(placed, l.pay), Ordered: true}
	steps, err := consumer.New(l.payments.pool, subscriber, []consumer.Step{step}, &consumer.Options{Schema: l.payments.schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	l.relay = l.orders.relay(t, publisher)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := steps.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	for i := range customers {
		l.customers.Go(func() { l.buy(ctx, i) })
	}
	t.Cleanup(func() { cancel(); l.customers.Wait(); running.Wait() })
}

// pay notes that an order was handled.
func (l *load) pay(ctx context.Context, tx pgx.Tx, in consumer.Message[order], _ consumer.Emit) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+l.payments.schema+".payment (customer, n) VALUES ($1, $2)", in.Key, in.Body.Amount)
	return err
}

// buy places a customer's orders until the fault is over, and some more. Each is tried
// until it is acknowledged.
func (l *load) buy(ctx context.Context, customer int) {
	for left := afterwards; left > 0; {
		if l.over.Load() {
			left--
		}
		for l.request(ctx, fmt.Sprint("c", customer), l.bought[customer]+1) != nil {
			l.failed.Add(1)
			if backoff.Sleep(ctx, retryPause) != nil {
				return
			}
		}
		l.bought[customer]++
		l.acknowledged.Add(1)
		if backoff.Sleep(ctx, orderPause) != nil {
			return
		}
	}
}

// request places an order with its message in one transaction. It returns nil once that is
// known to have committed, in this try or an earlier one.
func (l *load) request(ctx context.Context, customer string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	return pgx.BeginFunc(ctx, l.orders.pool, func(tx pgx.Tx) error {
		tries := 0
		if err := tx.QueryRow(ctx, strings.ReplaceAll(sqlPlaceRequest, "{schema}", l.orders.schema), customer, n).Scan(&tries); err != nil || tries > 1 {
			return err
		}
		return l.writer.Write(ctx, tx, outbox.Message{
			Topic: placed, Scope: "tenant", Key: customer, Step: "handle", N: fmt.Sprint(n), Payload: fmt.Appendf(nil, `{"amount":%d}`, n),
		})
	})
}

// awaitAcknowledged waits until so many orders are.
func (l *load) awaitAcknowledged(t *testing.T, n int32) {
	t.Helper()
	await(t, fmt.Sprint(n, " orders are acknowledged"), func() bool { return l.acknowledged.Load() >= n })
}

// check lets the customers finish, waits until all is handled, and checks on server that
// each order that was acknowledged is there once, and was handled once and in its place.
func (l *load) check(t *testing.T, server *pgservertest.Server) {
	t.Helper()
	l.over.Store(true)
	ended := make(chan struct{})
	go func() { l.customers.Wait(); close(ended) }()
	await(t, "all orders are acknowledged", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	var want []string
	for i, n := range l.bought {
		want = append(want, fmt.Sprintf("c%d:1-%d", i, n))
	}
	orders, payments := reopen(t, l.orders, server), reopen(t, l.payments, server)
	all := strings.Join(want, " ")
	_ = within(t, func() bool { return payments.runs(t, sqlListPayments) == all })
	equal(t, "requests", orders.runs(t, sqlListRequests), all)
	equal(t, "payments", payments.runs(t, sqlListPayments), all)
	equal(t, "dead letters", payments.list(t, sqlListDead), "")
	l.relay.settled(t)
	t.Logf("%d orders, %d tries failed", l.acknowledged.Load(), l.failed.Load())
}

// runs returns for each customer the numbers of a query, those that follow each other as
// first and last.
func (s *shop) runs(t *testing.T, sql string) string {
	t.Helper()
	rows, _ := s.pool.Query(t.Context(), strings.ReplaceAll(sql, "{schema}", s.schema))
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		Customer string
		Numbers  []int
	}])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	var lines []string
	for _, of := range all {
		lines = append(lines, of.Customer+":"+collapse(of.Numbers))
	}
	return strings.Join(lines, " ")
}

// collapse returns 1-3,5-6,6-6 for 1, 2, 3, 5, 6, 6.
func collapse(numbers []int) string {
	var runs []string
	for i := 0; i < len(numbers); {
		first := i
		for i++; i < len(numbers) && numbers[i] == numbers[i-1]+1; i++ {
		}
		runs = append(runs, fmt.Sprintf("%d-%d", numbers[first], numbers[i-1]))
	}
	return strings.Join(runs, ",")
}
