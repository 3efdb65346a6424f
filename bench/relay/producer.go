package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/proctime"
	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/outbox"
)

const (
	clients      = 32
	stockRows    = 10_000
	catchUp      = 30 * time.Second // for the relay, after a slice
	catchUpPause = 20 * time.Millisecond
)

// A producerRun is one measurement. Without a goal it is for information.
type producerRun struct {
	slot string
	way  way
	real bool // the relay publishes to RabbitMQ
	goal float64
}

// A way is how the business transaction writes an outbox row.
type way string

const (
	bare   way = "bare"  // not at all
	write  way = "write" // in a separate round trip
	queued way = "queue" // in the round trip of the order's row
	plain  way = "plain" // a row of a plain table in its place, which nobody reads: what any such row costs
)

var producerRuns = []producerRun{
	{"ours-log", queued, false, 0.85},
	{"ours-log", write, false, 0},
	{"ours-log", queued, true, 0},
	{"ours-log", plain, false, 0},
}

// relayed reports whether the relay publishes what is written so.
func (w way) relayed() bool { return w == write || w == queued }

// producers measures the cost of an outbox row for the transaction that writes it, while the relay publishes.
// It measures with a broker that costs nothing, and with RabbitMQ, which needs processors too.
func (b *bench) producers(ctx context.Context) ([]target.Target, error) {
	var targets []target.Target
	for _, s := range b.servers {
		for _, run := range producerRuns {
			value, err := b.measureProducer(ctx, s, run)
			if err != nil {
				return nil, fmt.Errorf("server %s, slot %s: %w", s.Name, run.slot, err)
			}
			if value > 0 && run.goal > 0 {
				targets = append(targets, target.Target{Name: "producer-" + s.Name + "-" + run.slot + "-" + string(run.way), Value: value, Goal: run.goal})
			}
		}
	}
	return targets, nil
}

// measureProducer returns the median of the rounds' ratios, 0 if the slot is not built.
func (b *bench) measureProducer(ctx context.Context, s *private.Server, run producerRun) (ratio float64, err error) {
	use := "producer-" + string(run.way)
	if run.real {
		use += "-rabbitmq"
	}
	sub, o, err := b.openOwnSubject(ctx, s, run.slot, use)
	if err != nil || sub == nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sub.closeSubject()) }()
	var pub outbox.Publisher = accepting{}
	if run.real {
		pub = o.publisher
	}
	shop, err := openShop(ctx, o, pub)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, shop.closeShop()) }()
	var ratios, rates []float64
	for round := range b.rounds + 1 {
		with, without, err := shop.runRound(ctx, b.slice, run.way, round%2 == 0)
		if err != nil {
			return 0, err
		}
		if round == 0 {
			continue // warms connections and plans up
		}
		ratios, rates = append(ratios, with/without), append(rates, without)
	}
	fmt.Printf("%-24s %-6s %-10s %5.0f transactions/s, with an outbox row %.2f of that; messages behind %d\n",
		use, s.Name, run.slot, target.MedianOf(rates), target.MedianOf(ratios), shop.behind)
	for _, w := range []way{bare, run.way} {
		fmt.Printf("%-24s %-6s %-10s %-5s %s\n", use, s.Name, run.slot, w, shop.used[w].FormatEach(shop.orders[w]))
	}
	return target.MedianOf(ratios), nil
}

// A shop takes orders in a business transaction as users write it, with one round trip for each statement.
type shop struct {
	ours      *ours
	pool      *pgxpool.Pool
	relay     *outbox.Relay
	stopRelay func() error
	published *counter
	written   atomic.Int64
	behind    int64 // messages, when the last slice ended
	used      map[way]proctime.Usage
	orders    map[way]int
}

func openShop(ctx context.Context, o *ours, pub outbox.Publisher) (_ *shop, err error) {
	s := &shop{ours: o, published: newCounter(unlimited), used: map[way]proctime.Usage{}, orders: map[way]int{}}
	for _, statement := range []string{
		"CREATE TABLE stock (id int PRIMARY KEY, quantity bigint NOT NULL)",
		"CREATE TABLE shop_order (id uuid PRIMARY KEY, item int NOT NULL, customer text NOT NULL, amount bigint NOT NULL)",
		"CREATE TABLE plain_message (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, topic text NOT NULL, key text NOT NULL, payload bytea NOT NULL)",
		fmt.Sprintf("INSERT INTO stock SELECT n, 1000000000 FROM generate_series(1, %d) AS n", stockRows),
	} {
		if _, err := o.pool.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	if err := o.tendTables(ctx, "VACUUM ANALYZE"); err != nil {
		return nil, err
	}
	if s.pool, err = o.connectPool(ctx, "shop", clients); err != nil {
		return nil, err
	}
	if s.relay, s.stopRelay, err = o.startRelay(ctx, counted{pub, s.published}); err != nil {
		s.pool.Close()
		return nil, err
	}
	return s, nil
}

func (s *shop) closeShop() error {
	s.pool.Close()
	return s.stopRelay()
}

// runRound measures one slice without and one with outbox rows. The order alternates, since the second slice
// has larger tables.
func (s *shop) runRound(ctx context.Context, slice time.Duration, w way, withFirst bool) (with, without float64, err error) {
	ways := []way{bare, w}
	if withFirst {
		ways = []way{w, bare}
	}
	for _, w := range ways {
		rate, err := s.serveSlice(ctx, slice, w)
		if err != nil {
			return 0, 0, err
		}
		if w == bare {
			without = rate
			continue
		}
		with = rate
		if err := s.awaitCaughtUp(ctx); err != nil {
			return 0, 0, err
		}
	}
	return with, without, nil
}

// serveSlice lets the clients order for a while and returns the transactions per second.
func (s *shop) serveSlice(ctx context.Context, slice time.Duration, w way) (float64, error) {
	var (
		wg     sync.WaitGroup
		orders atomic.Int64
		faults = make([]error, clients)
		used   = proctime.ReadUsage()
		start  = time.Now()
	)
	for i := range clients {
		wg.Go(func() {
			for faults[i] == nil && time.Since(start) < slice && ctx.Err() == nil {
				if faults[i] = s.writeOrder(ctx, w); faults[i] == nil {
					orders.Add(1)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	s.used[w] = s.used[w].AddUsage(proctime.ReadUsage().UsedSince(used))
	s.orders[w] += int(orders.Load())
	if w.relayed() {
		s.written.Add(orders.Load())
		s.behind = s.written.Load() - s.published.count.Load()
	}
	return float64(orders.Load()) / took.Seconds(), errors.Join(faults...)
}

const (
	sqlTakeStock = "UPDATE stock SET quantity = quantity - 1 WHERE id = $1"
	sqlAddOrder  = "INSERT INTO shop_order (id, item, customer, amount) VALUES ($1, $2, $3, $4)"
	sqlAddPlain  = "INSERT INTO plain_message (topic, key, payload) VALUES ($1, $2, $3)"
)

// writeOrder is the business transaction.
func (s *shop) writeOrder(ctx context.Context, w way) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		item, id := 1+rand.N(stockRows), uuid.New()
		if _, err := tx.Exec(ctx, sqlTakeStock, item); err != nil {
			return err
		}
		if w == queued || w == plain {
			batch, message := &pgx.Batch{}, s.ours.outboxMessage(id.String())
			batch.Queue(sqlAddOrder, id, item, "c-17", 4200)
			if w == plain {
				batch.Queue(sqlAddPlain, message.Topic, message.Key, message.Payload)
			} else if err := s.ours.writer.Queue(ctx, batch, message); err != nil {
				return err
			}
			return tx.SendBatch(ctx, batch).Close()
		}
		_, err := tx.Exec(ctx, sqlAddOrder, id, item, "c-17", 4200)
		if err != nil || w == bare {
			return err
		}
		return s.ours.writer.Write(ctx, tx, s.ours.outboxMessage(id.String()))
	})
	if err == nil && w.relayed() {
		s.relay.Wake()
	}
	return err
}

// awaitCaughtUp waits until the relay has published everything and empties the queue,
// so that the next slice has the machine to itself.
func (s *shop) awaitCaughtUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for s.published.count.Load() < s.written.Load() {
		if err := backoff.Sleep(ctx, catchUpPause); err != nil {
			return fmt.Errorf("published are %d of %d messages: %w", s.published.count.Load(), s.written.Load(), err)
		}
	}
	return s.ours.queue.PurgeQueue()
}
