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

// settings are those of package consumer's benchmark, for the same reasons.
var settings = []string{
	"shared_buffers=6GB", "max_wal_size=16GB", "min_wal_size=1GB", "checkpoint_timeout=1h", "autovacuum=off", "max_connections=700",
}

// A bench is one run of the program.
type bench struct {
	rounds  int
	slice   time.Duration
	kinds   []kind
	loads   []string // of the part quiet
	listing bool     // of the statements at each of them
	broker  *private.Broker
	servers []*private.Server // the first is native
}

// A part measures one thing with the subjects of one server. compare returns the targets; it may be nil.
type part struct {
	name    string
	measure func(*bench, context.Context, *private.Server, []*subject) error
	compare func(*bench, *private.Server, []*subject) []target.Target
}

// parts are in this order because a load is a share of the measured capacity.
var parts = []part{
	{sweepPart, (*bench).measureSweep, nil},
	{"throughput", (*bench).throughput, (*bench).compareThroughput},
	{"latency", (*bench).measureLatency, nil},
	{quietPart, (*bench).measureQuiet, (*bench).compareQuiet},
	{logPart, (*bench).measureLog, nil},
}

func main() {
	b := &bench{}
	var names []string
	for _, p := range parts {
		if p.name != quietPart && p.name != sweepPart && p.name != logPart { // they run alone: other settings, or no comparison
			names = append(names, p.name)
		}
	}
	flag.IntVar(&b.rounds, "rounds", 3, "rounds; the median counts")
	flag.DurationVar(&b.slice, "slice", 1500*time.Millisecond, "length of one measurement, about")
	cpu := flag.String("cpuprofile", "", "write a CPU profile of this process to the file")
	list := flag.String("parts", strings.Join(names, ","), "what is measured")
	which := flag.String("kinds", strings.Join(kindNames(), ","), "what is compared")
	on := flag.String("servers", "native,slow", "on which servers")
	loads := flag.String("loads", strings.Join(loadNames(), ","), "at which loads the part quiet measures; half needs saturated before it")
	flag.BoolVar(&b.listing, "statements", false, "list the statements of a saga at each load of the part quiet")
	sweep := flag.Bool("sweep", false, "measure only which number of sagas in flight suits each kind best")
	flag.Parse()
	if *sweep {
		*list = sweepPart
	}
	b.loads = strings.Split(*loads, ",")
	defer profile.StartProfile(*cpu)()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.runSections(ctx, strings.Split(*list, ","), strings.Split(*which, ","), strings.Split(*on, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// runSections measures the named parts on private servers: on shared servers, other load would be part of every
// figure.
func (b *bench) runSections(ctx context.Context, names, which, on []string) (err error) {
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	for _, load := range b.loads {
		if !slices.Contains(loadNames(), load) {
			return fmt.Errorf("there is no load %q", load)
		}
	}
	if b.kinds, err = pickKinds(which); err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	configured := settings
	if slices.Contains(names, quietPart) || slices.Contains(names, logPart) {
		configured = quietSettings
	}
	servers, err := private.StartServers(ctx, configured...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	b.broker, b.servers = servers.Broker, servers.Databases
	fmt.Println("servers", strings.Join(configured, " "), "and else the defaults; full_page_writes on")
	var targets []target.Target
	for _, s := range b.servers {
		if !slices.Contains(on, s.Name) {
			continue
		}
		some, err := b.measureOnServer(ctx, s, names)
		if err != nil {
			return fmt.Errorf("server %s: %w", s.Name, err)
		}
		targets = append(targets, some...)
	}
	for _, t := range targets {
		fmt.Println(t)
	}
	return nil
}

// measureOnServer measures the parts named on s.
func (b *bench) measureOnServer(ctx context.Context, s *private.Server, names []string) (targets []target.Target, err error) {
	subjects, err := b.newSubjects(ctx, s)
	defer func() { err = errors.Join(err, closeSubjects(subjects)) }()
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if !slices.Contains(names, p.name) {
			continue
		}
		if err := p.measure(b, ctx, s, subjects); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if p.compare != nil {
			targets = append(targets, p.compare(b, s, subjects)...)
		}
	}
	return targets, nil
}
