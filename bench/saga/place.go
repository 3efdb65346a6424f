package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/trips"
	"github.com/sagamill/sagamill/saga"
)

// A place is where a subject has its tables and its queues.
type place struct {
	server  *private.Server
	broker  *private.Broker
	prefix  string
	queues  []*private.Queue // of the topics
	config  wamqp.Config     // of all queues
	all     *pgxpool.Pool    // sees the tables of all services; its work does not count
	count   trips.Counter    // of all other pools
	listing bool             // the statements of each measurement are listed
}

// createPlace makes the place called name on s.
func (b *bench) createPlace(ctx context.Context, s *private.Server, name string) (_ *place, err error) {
	p := &place{server: s, broker: b.broker, prefix: "bench_" + strings.ReplaceAll(name, "-", "_")}
	declared := []string{saga.Topic(p.sagaName())}
	for _, topic := range topics {
		declared = append(declared, p.topicName(topic))
	}
	for _, topic := range declared {
		q, err := b.broker.DeclareQueue(ctx, topic)
		if err != nil {
			return nil, err
		}
		p.queues, p.config = append(p.queues, q), q.Config
	}
	var schemas []string
	for _, service := range services {
		if err := p.createSchema(ctx, service); err != nil {
			return nil, fmt.Errorf("schema of %s: %w", service, err)
		}
		schemas = append(schemas, p.schemaName(service))
	}
	config, err := p.poolConfig(4, schemas...)
	if err == nil {
		p.all, err = pgxpool.NewWithConfig(ctx, config)
	}
	return p, err
}

func (p *place) createSchema(ctx context.Context, service string) error {
	conn, err := pgx.Connect(ctx, p.server.URL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range append([]string{"CREATE SCHEMA " + p.schemaName(service), "SET search_path = " + p.schemaName(service)}, business[service]...) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// topicName returns the name of a topic at this place. Names differ between servers.
func (p *place) topicName(name string) string { return p.server.Name + "." + p.prefix + "." + name }

// sagaName returns the name of an orchestrated saga here.
func (p *place) sagaName() string {
	return p.server.Name + "-" + strings.ReplaceAll(p.prefix, "_", "-")
}

func (p *place) schemaName(service string) string { return p.prefix + "_" + service }

// poolConfig configures a pool that looks for tables in schemas.
func (p *place) poolConfig(conns int, schemas ...string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(p.server.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	config.ConnConfig.RuntimeParams["search_path"] = strings.Join(schemas, ", ")
	return config, nil
}

// connectPool opens a pool that looks for tables in schemas. Its round trips and transactions are counted.
func (p *place) connectPool(ctx context.Context, conns int, schemas ...string) (*pgxpool.Pool, error) {
	config, err := p.poolConfig(conns, schemas...)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.AfterNetConnect = p.count.CountConn
	return pgxpool.NewWithConfig(ctx, config)
}

// connectWholePool is connectPool for a pool that lives for one slice: it opens all connections at once, so that
// connecting is no part of what is measured.
func (p *place) connectWholePool(ctx context.Context, conns int, schemas ...string) (*pgxpool.Pool, error) {
	pool, err := p.connectPool(ctx, conns, schemas...)
	if err != nil {
		return nil, err
	}
	var held []*pgxpool.Conn
	for range conns {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		conn.Release()
	}
	if len(held) < conns {
		pool.Close()
		return nil, fmt.Errorf("only %d of %d connections could be opened", len(held), conns)
	}
	return pool, nil
}

// truncateTables empties the tables of every service that are named, and the business tables.
func (p *place) truncateTables(ctx context.Context, tables ...string) error {
	names := []string{businessTables}
	for _, table := range tables {
		for _, service := range services {
			names = append(names, p.schemaName(service)+"."+table)
		}
	}
	_, err := p.all.Exec(ctx, "TRUNCATE "+strings.Join(names, ", "))
	return err
}

// purgeQueues empties the place's queues.
func (p *place) purgeQueues() error {
	var faults []error
	for _, q := range p.queues {
		faults = append(faults, q.PurgeQueue())
	}
	return errors.Join(faults...)
}

// checkSettled returns an error if a message went back to a queue.
func (p *place) checkSettled() error {
	for _, q := range p.queues {
		left, err := q.QueueDepth()
		if err != nil {
			return err
		}
		if left > 0 {
			return fmt.Errorf("%d messages on %s were not acked", left, q.Topic)
		}
	}
	return nil
}

// A count is a required number of rows.
type count struct {
	of   string // the text after FROM
	want int
}

// checkCounts returns an error unless all counts are right, and each of n orders has all its rows.
func (p *place) checkCounts(ctx context.Context, n int, counts ...count) error {
	for _, table := range strings.Split(businessTables, ", ") {
		counts = append(counts, count{table, n})
	}
	counts = append(counts, count{"orders JOIN payment USING (order_id) JOIN shipment USING (order_id) JOIN completion USING (order_id)", n})
	for _, c := range counts {
		var got int
		if err := p.all.QueryRow(ctx, "SELECT count(*) FROM "+c.of).Scan(&got); err != nil {
			return err
		}
		if got != c.want {
			return fmt.Errorf("an effect was lost or happened twice: %d rows in %s, want %d", got, c.of, c.want)
		}
	}
	return nil
}

// countsEach counts the rows of a table of every service.
func (p *place) countsEach(table string, want int) (counts []count) {
	for _, service := range services {
		counts = append(counts, count{p.schemaName(service) + "." + table, want})
	}
	return counts
}

// countsHandled counts, for each step, the rows h of a table that record it as handled, joined with their
// order's effect e. on is the join condition, with %s in the place of the step.
func (p *place) countsHandled(table, on string, want int) (counts []count) {
	for _, st := range steps {
		counts = append(counts, count{fmt.Sprintf("%s.%s h JOIN %s e ON "+on, p.schemaName(st.service), table, st.effect.table, st.name), want})
	}
	return counts
}
