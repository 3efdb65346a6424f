package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/bench/internal/target"
	"github.com/sagamill/sagamill/internal/devservices"
)

// A bench is one run of the program.
type bench struct {
	rounds  int
	slice   time.Duration
	clients int
	think   time.Duration
	subs    []*subject // the first is the bare transaction
}

func main() {
	b := &bench{}
	flag.IntVar(&b.rounds, "rounds", 5, "rounds; the median counts")
	flag.DurationVar(&b.slice, "slice", 700*time.Millisecond, "length of one measurement")
	flag.IntVar(&b.clients, "clients", 4, "clients with keys of their own")
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process to `file`")
	flag.DurationVar(&b.think, "think", 20*time.Millisecond, "pause of each of the hot key's clients between two requests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runProfiled(*profile, func() error { return b.runSections(ctx) }); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// runProfiled runs f, under the profiler if path is not empty.
func runProfiled(path string, f func() error) error {
	if path == "" {
		return f()
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

// runSections measures on a private server: it counts WAL flushes, and on a shared server it would count
// others' flushes too.
func (b *bench) runSections(ctx context.Context) error {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// No broker, and no server that others use.
	err := errors.Join(os.Setenv("AMQP_URL", devservices.InProcess), os.Unsetenv("DATABASE_URL"), os.Unsetenv("REDIS_URL"))
	if err != nil {
		return err
	}
	services, err := devservices.Start(ctx, &devservices.Options{Steps: "env,private,npm,none", Redis: true})
	if err != nil {
		return err
	}
	defer services.Close()
	defer func() {
		for _, sub := range b.subs {
			sub.closeSubject()
		}
	}()
	for _, slot := range slots {
		if err := b.openSlot(ctx, services, slot); err != nil {
			return fmt.Errorf("%s: %w", slot.name, err)
		}
	}
	var targets []target.Target
	for _, part := range []func(context.Context) ([]target.Target, error){b.measureRates, b.measureCosts, b.measureHotKeys} {
		some, err := part(ctx)
		if err != nil {
			return err
		}
		targets = append(targets, some...)
	}
	for _, t := range targets {
		fmt.Println(t)
	}
	return nil
}

// openSlot adds slot to the subjects, or prints why it cannot.
func (b *bench) openSlot(ctx context.Context, services *devservices.Services, slot slot) error {
	switch {
	case slot.open == nil:
		fmt.Printf("slot %-8s not built\n", slot.name)
		return nil
	case slot.redis && services.RedisURL == devservices.NoRedis:
		fmt.Printf("slot %-8s NOT MEASURED: no redis-server on this machine\n", slot.name)
		return nil
	}
	sub, err := newSubject(ctx, services, slot)
	if err != nil {
		return err
	}
	b.subs = append(b.subs, sub)
	if sub.redis == nil {
		return nil
	}
	text, err := sub.redis.durability(ctx)
	if err == nil {
		fmt.Printf("slot %-8s %s\n", slot.name, text)
	}
	return err
}
