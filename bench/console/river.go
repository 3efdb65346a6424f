package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"riverqueue.com/riverui"

	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/bench/internal/trips"
)

// sqlSeedRiver stores a job for each saga and for each dead letter, in the states that they have.
const sqlSeedRiver = `
INSERT INTO river_job (state, attempt, max_attempts, attempted_at, created_at, finalized_at, scheduled_at, kind, args, queue, errors, metadata, tags, priority)
SELECT state::river_job_state, CASE state WHEN 'discarded' THEN 25 ELSE 1 END, 25, at, at, CASE WHEN state IN ('completed', 'discarded', 'cancelled') THEN at + interval '3 seconds' END, at, kind,
	jsonb_build_object('order_id', md5('k' || i)::uuid, 'item', 'sku-4711', 'amount', 4200, 'note', repeat('x', 300)), 'default',
	CASE state WHEN 'discarded' THEN ARRAY[jsonb_build_object('at', at, 'attempt', 25, 'error', 'payment: status 503', 'trace', '')] END, '{}', '{}', 1
FROM (SELECT i, CASE WHEN i <= $2 THEN 'discarded' WHEN i % 50 = 0 THEN 'retryable' WHEN i % 17 = 0 THEN 'cancelled' ELSE 'completed' END AS state,
	(ARRAY['reserve-stock', 'take-payment', 'book-courier', 'send-invoice', 'notify-customer'])[1 + i % 5] AS kind,
	clock_timestamp() - interval '24 hours' * ((i * 7919) % 1000003 / 1000003.0) AS at
	FROM generate_series(1, $1::bigint) i) j`

// riverPages are what River UI's pages of jobs ask for when they are loaded, and every few seconds.
var riverPages = []visit{
	{name: "River UI: jobs, running", path: fixed("api/jobs?limit=20&state=running")},
	{name: "River UI: jobs, completed", path: fixed("api/jobs?limit=20&state=completed")},
	{name: "River UI: jobs, discarded", path: fixed("api/jobs?limit=20&state=discarded")},
	{name: "River UI: jobs, kind", path: fixed("api/jobs?limit=20&state=completed&kinds=send-invoice")},
	{name: "River UI: jobs, a kind of none", path: fixed("api/jobs?limit=20&state=completed&kinds=none")},
	{name: "River UI: counts of states", path: fixed("api/states")},
	{name: "River UI: queues", path: fixed("api/queues?limit=100")},
}

// visitRiver measures the same of River UI, on its tables.
func (b *bench) visitRiver(ctx context.Context) (_ []target.Target, err error) {
	if err := b.seedRiver(ctx); err != nil {
		return nil, err
	}
	s, stopPages, err := b.openRiver(ctx)
	if err != nil {
		return nil, err
	}
	defer stopPages()
	costs := map[string]float64{}
	for _, one := range riverPages {
		costs[one.name] = b.measureRiver(ctx, s, &one, b.visits).processor
	}
	stop, err := b.startLoad(ctx, b.rate)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Printf("\nRiver UI with %d jobs, each request %d times, beside the same load\n", b.counts.sagas+b.counts.letters, b.visits)
	fmt.Printf(tableForm, "request", "p50", "p95", "processor", "statements", "")
	for _, one := range riverPages {
		m := b.measureRiver(ctx, s, &one, b.visits)
		m.processor = costs[one.name]
		printMeasured(m)
	}
	used := s.count.Statements.Load()
	p, err := b.watch(ctx, &site{}, b.slice)
	fmt.Printf("River UI without a browser: %.1f statements a second\n", float64(s.count.Statements.Load()-used)/p.took.Seconds())
	return nil, err
}

// A riverSite is River UI.
type riverSite struct {
	server *httptest.Server
	count  trips.Counter
}

func (b *bench) seedRiver(ctx context.Context) error {
	begun := time.Now()
	conn, err := pgx.Connect(ctx, b.job.Database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range []string{"CREATE SCHEMA IF NOT EXISTS river", "SET search_path = river", "SET synchronous_commit = off", "SET maintenance_work_mem = '1GB'", "SET jit = off"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	pool, err := pgxpool.New(ctx, b.job.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: "river", Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, sqlSeedRiver, b.counts.sagas+b.counts.letters, b.counts.letters); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "VACUUM ANALYZE river_job")
	fmt.Printf("River's table filled in %.0f s\n", time.Since(begun).Seconds())
	return err
}

// openRiver starts River UI as its program does.
func (b *bench) openRiver(ctx context.Context) (s *riverSite, stop func(), err error) {
	s = &riverSite{}
	config, err := pgxpool.ParseConfig(b.job.Database)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = consoleConns
	config.ConnConfig.AfterNetConnect = s.count.CountConn
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Schema: "river", Logger: quiet})
	if err != nil {
		return nil, nil, errors.Join(err, closed(pool))
	}
	handler, err := riverui.NewHandler(&riverui.HandlerOpts{Endpoints: riverui.NewEndpoints(client, nil), Logger: quiet})
	if err != nil {
		return nil, nil, errors.Join(err, closed(pool))
	}
	running, cancel := context.WithCancel(ctx)
	if err := handler.Start(running); err != nil {
		cancel()
		return nil, nil, errors.Join(err, closed(pool))
	}
	s.server = httptest.NewServer(handler)
	return s, func() {
		s.server.Close()
		cancel()
		pool.Close()
	}, nil
}

func closed(pool *pgxpool.Pool) error {
	pool.Close()
	return nil
}

func (b *bench) measureRiver(ctx context.Context, s *riverSite, one *visit, n int) *measured {
	return b.measureVisits(one.name, n, &s.count, func() error { return nil }, func() error { return s.get(ctx, one.path(nil)) })
}

func (s *riverSite) get(ctx context.Context, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+"/"+path, nil)
	if err != nil {
		return err
	}
	response, err := s.server.Client().Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: %s is %s: %s", errStatus, path, response.Status, strings.TrimSpace(string(text)))
	}
	return err
}
