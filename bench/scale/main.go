package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/bench/internal/private"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// settings are those of package consumer's benchmark, for the same reasons. max_connections suits four
// processes of three services.
var settings = []string{
	"shared_buffers=1GB", "max_wal_size=16GB", "min_wal_size=1GB", "checkpoint_timeout=1h", "autovacuum=off", "max_connections=400",
}

// A bench is one run of the program.
type bench struct {
	rounds  int
	slice   time.Duration
	limit   time.Duration
	servers []string
	broker  *private.Broker
}

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if text, is := os.LookupEnv(jobVariable); is {
		if err := serveJob(ctx, text); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	b := &bench{}
	names := make([]string, len(series))
	for i, s := range series {
		names[i] = s.name
	}
	flag.IntVar(&b.rounds, "rounds", 3, "rounds at most; the median counts")
	flag.DurationVar(&b.slice, "slice", time.Second, "length of one measurement, about")
	flag.DurationVar(&b.limit, "limit", 150*time.Second, "after which no further round begins")
	list := flag.String("series", strings.Join(names, ","), "what is measured")
	on := flag.String("servers", "native,slow", "on which servers")
	flag.Parse()
	b.servers = strings.Split(*on, ",")
	if err := b.runSections(ctx, strings.Split(*list, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// runSections measures the named series on private servers.
func (b *bench) runSections(ctx context.Context, names []string) (err error) {
	for _, name := range names {
		if !slices.ContainsFunc(series, func(s sequence) bool { return s.name == name }) {
			return fmt.Errorf("there is no series %q", name)
		}
	}
	servers, err := private.StartServers(ctx, settings...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	b.broker = servers.Broker
	fmt.Println("servers", strings.Join(settings, " "), "and else the defaults; full_page_writes on")
	var todo []*trial
	for _, s := range servers.Databases {
		for _, q := range series {
			if slices.Contains(names, q.name) && slices.Contains(b.servers, s.Name) && (s == servers.Databases[0] || q.slow) {
				todo = append(todo, &trial{sequence: q, server: s})
			}
		}
	}
	targets, err := b.runTrials(ctx, todo)
	for _, t := range targets {
		fmt.Println(t)
	}
	return err
}

// runTrials measures trials one after the other, each within its share of the time.
func (b *bench) runTrials(ctx context.Context, todo []*trial) (targets []target.Target, err error) {
	begun := time.Now()
	for i, t := range todo {
		until := begun.Add(b.limit * time.Duration(i+1) / time.Duration(len(todo)))
		if err := b.measureTrial(ctx, t, until); err != nil {
			return nil, fmt.Errorf("%s on server %s: %w", t.name, t.server.Name, err)
		}
		if i == 0 || todo[i-1].server != t.server {
			fmt.Println(header)
		}
		t.printSeries()
		targets = append(targets, t.seriesTargets()...)
	}
	return targets, nil
}
