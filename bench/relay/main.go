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
	"github.com/sagamill/sagamill/bench/internal/profile"
	"github.com/sagamill/sagamill/bench/internal/target"
)

// A bench is one run of the program.
type bench struct {
	rounds  int
	slice   time.Duration
	hold    time.Duration
	held    int
	broker  *private.Broker
	servers []*private.Server // the first is native
}

// A part measures one thing.
type part struct {
	name    string
	measure func(*bench, context.Context) ([]target.Target, error)
}

var parts = []part{
	{"drain", (*bench).measureDrains},
	{"hold", (*bench).measureHolds},
	{"latency", (*bench).latencies},
	{"producer", (*bench).producers},
	{"stall", (*bench).measureStalls},
	{"memory", (*bench).measureMemory},
}

func main() {
	b := &bench{}
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	flag.IntVar(&b.rounds, "rounds", 3, "rounds; the median counts")
	flag.DurationVar(&b.slice, "slice", 5*time.Second, "length of one measurement, about")
	flag.DurationVar(&b.hold, "hold", time.Minute, "how long a snapshot is held open")
	flag.IntVar(&b.held, "held", 1_000_000, "messages that are held for a stalled topic")
	cpu := flag.String("cpuprofile", "", "write a CPU profile of this process to the file")
	list := flag.String("parts", strings.Join(names, ","), "what is measured")
	flag.Parse()
	defer profile.StartProfile(*cpu)()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if job := os.Getenv(memoryJob); job != "" {
		if err := doJob(ctx, job); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			stop()
			os.Exit(1)
		}
		return
	}
	if err := b.runSections(ctx, strings.Split(*list, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// runSections measures the named parts on private servers: on shared servers, other load would be part of every
// figure.
func (b *bench) runSections(ctx context.Context, names []string) (err error) {
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	for _, sl := range slots {
		if sl.open == nil {
			fmt.Printf("slot %s not built\n", sl.name)
		}
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	servers, err := private.StartServers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	b.broker, b.servers = servers.Broker, servers.Databases
	if len(b.servers) == 0 {
		return nil
	}
	var targets []target.Target
	for _, p := range parts {
		if !slices.Contains(names, p.name) {
			continue
		}
		some, err := p.measure(b, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		targets = append(targets, some...)
	}
	for _, t := range targets {
		fmt.Println(t)
	}
	return nil
}
