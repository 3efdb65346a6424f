package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// settings are those of the other benchmarks, but autovacuum runs: it makes the summaries of the outbox log. Without wal_level=minimal the tables take twice as long to fill.
var settings = []string{
	"shared_buffers=1GB", "max_wal_size=16GB", "min_wal_size=1GB", "checkpoint_timeout=1h", "max_connections=200",
	"wal_level=minimal", "max_wal_senders=0",
}

// A bench is one run of the program.
type bench struct {
	counts counts
	visits int
	rate   int
	only   string
	rounds int
	slice  time.Duration
	limit  time.Duration
	parts  []string
	held   string
	job    job
	pool   *pgxpool.Pool // of the benchmark itself
	worker *worker       // of the load
}

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if text, is := os.LookupEnv(jobVariable); is {
		if err := serveJob(ctx, text); err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	b := &bench{}
	flag.IntVar(&b.counts.sagas, "sagas", 1_000_000, "instances")
	flag.IntVar(&b.counts.inbox, "inbox", 10_000_000, "rows of the inbox, about")
	flag.IntVar(&b.counts.letters, "letters", 100_000, "dead letters of both sides")
	flag.IntVar(&b.visits, "visits", 20, "requests for each page, in each round")
	flag.IntVar(&b.rate, "rate", 50, "sagas a second beside the pages")
	flag.StringVar(&b.only, "only", "", "pages whose name has this text")
	held := flag.String("held", "", "the servers that another run holds, as it has printed them")
	flag.IntVar(&b.rounds, "rounds", 9, "rounds of the throughput; the median counts")
	flag.DurationVar(&b.slice, "slice", 15*time.Second, "length of one slice of the throughput")
	flag.DurationVar(&b.limit, "limit", 30*time.Minute, "after which the run ends")
	parts := flag.String("parts", "pages,browsers,river", "what is measured; hold keeps the servers until the limit")
	flag.Parse()
	b.parts, b.held = strings.Split(*parts, ","), *held
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		cancel()
		stop()
		os.Exit(1)
	}
}

// run fills the tables of a private server and measures, or measures on the servers of another run.
func (b *bench) run(ctx context.Context) (err error) {
	if b.held != "" {
		if err := json.Unmarshal([]byte(b.held), &b.job); err != nil {
			return err
		}
		return b.measureParts(ctx)
	}
	servers, err := private.StartNative(ctx, settings...)
	if err != nil || servers.Broker == nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	fmt.Println("servers", strings.Join(settings, " "), "and else the defaults; full_page_writes on")
	b.job = job{Database: servers.Databases[0].URL, Broker: servers.Broker.URL, Holder: os.Getpid()}
	if err := b.fill(ctx); err != nil {
		return err
	}
	return b.measureParts(ctx)
}

// measureParts measures, and prints the targets.
func (b *bench) measureParts(ctx context.Context) (err error) {
	if b.pool, err = pgxpool.New(ctx, b.job.Database); err != nil {
		return err
	}
	defer b.pool.Close()
	var targets []target.Target
	for _, part := range b.parts {
		measure, known := map[string]func(context.Context) ([]target.Target, error){
			"pages": b.visitPages, "browsers": b.openBrowsers, "river": b.visitRiver, "hold": b.hold}[part]
		if !known {
			return fmt.Errorf("there is no part %q", part)
		}
		more, err := measure(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		targets = append(targets, more...)
	}
	for _, t := range targets {
		fmt.Println(t)
	}
	return nil
}

// fill makes the samples and their copies, and prints what the tables have.
func (b *bench) fill(ctx context.Context) (err error) {
	begun := time.Now()
	pool, err := pgxpool.New(ctx, b.job.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	samples, err := makeSamples(ctx, pool, b.job)
	if err != nil {
		return fmt.Errorf("samples: %w", err)
	}
	if err := seed(ctx, b.job.Database, samples, &b.counts); err != nil {
		return err
	}
	var text string
	err = pool.QueryRow(ctx, `SELECT string_agg(format('%s %s', relname, n_live_tup), ', ' ORDER BY n_live_tup DESC) || ', ' || pg_size_pretty(pg_database_size(current_database()))
		FROM pg_stat_user_tables WHERE n_live_tup > 0`).Scan(&text)
	fmt.Printf("tables filled in %.0f s: %s\n", time.Since(begun).Seconds(), text)
	return err
}

// hold keeps the servers, for a look at them by hand.
func (b *bench) hold(ctx context.Context) ([]target.Target, error) {
	text, err := json.Marshal(b.job)
	fmt.Println("held:", string(text))
	<-ctx.Done()
	return nil, err
}
