package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/plaintext"
)

// The limits of a demo.
const (
	maxItems    = 10_000
	maxKills    = 1_000
	maxClients  = 64
	settleLimit = 2 * time.Minute // from the last item placed until every saga has ended
)

// DemoFlags are the flags of demo, to which a program adds its own.
type DemoFlags struct {
	*flag.FlagSet
	Items, Clients, Kills int
	Console               bool // serve the console meanwhile, and afterwards until the program is interrupted

	noun string
}

// NewDemoFlags returns flags of the command demo.
func (p *Program) NewDemoFlags(stderr io.Writer) *DemoFlags {
	f := &DemoFlags{FlagSet: flag.NewFlagSet(p.Name+" demo", flag.ContinueOnError), noun: p.Noun}
	f.SetOutput(io.Discard)
	f.IntVar(&f.Items, f.noun+"s", 200, f.noun+"s to place")
	f.IntVar(&f.Clients, "clients", 8, "clients that place them at the same time")
	f.IntVar(&f.Kills, "kill", 0, "how often to SIGKILL one of the service processes meanwhile")
	f.BoolVar(&f.Console, consoleFlag, false, consoleUsage+"; it stays after the demo, until Ctrl-C")
	f.Usage = func() {
		f.SetOutput(stderr)
		fmt.Fprintf(stderr, "usage: %s demo [flags]\n", p.Name)
		f.PrintDefaults()
	}
	return f
}

// ParseArgs reads args and returns a [SettingError] for a flag with a bad value.
func (f *DemoFlags) ParseArgs(args []string) error {
	if err := parseFlags(f.FlagSet, args); err != nil {
		return err
	}
	switch {
	case f.Items < 1 || f.Items > maxItems:
		return BadSetting("-"+f.noun+"s", "%d is not between 1 and %d", f.Items, maxItems)
	case f.Clients < 1 || f.Clients > maxClients:
		return BadSetting("-clients", "%d is not between 1 and %d", f.Clients, maxClients)
	case f.Kills < 0 || f.Kills > maxKills:
		return BadSetting("-kill", "%d is not between 0 and %d", f.Kills, maxKills)
	}
	return nil
}

// StartServers finds or starts the servers of a demo, and returns settings for them with a
// namespace for this run. The caller closes the servers.
func (p *Program) StartServers(ctx context.Context, stderr io.Writer) (*devservices.Services, *Settings, error) {
	servers, err := devservices.Start(ctx, &devservices.Options{Log: stderr})
	if err == nil {
		err = servers.Advertise(p.Name)
	}
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprint(stderr, servers.Exports())
	s := &Settings{
		Program: p, Services: p.Services, Listen: "127.0.0.1:0", StartTimeout: readyLimit,
		Namespace:   "demo-" + strings.ToLower(rand.Text()[:10]),
		DatabaseURL: servers.DatabaseURL, AMQPURL: servers.AMQPURL,
	}
	if s.AllowPlaintext, err = plaintext.Allowed(); err != nil {
		err = BadSetting(plaintext.Variable, "it is neither true nor false")
	} else {
		err = s.checkPlaintext()
	}
	if err != nil {
		servers.Close()
		return nil, nil, err
	}
	return servers, s, nil
}

// IsInProcess reports whether the broker runs in this process, because there is no RabbitMQ.
func (s *Settings) IsInProcess() bool { return s.AMQPURL == devservices.InProcess }

// A Trial is one run of a demo on a fleet.
type Trial[T any] struct {
	Settings *Settings
	Fleet    *Fleet
	Load     *Load[T]
	Flags    *DemoFlags

	// Victim returns the index of the process to kill, of n, after killed others.
	Victim func(killed, n int) int

	// Collect reads the data for Judge, after all sagas have ended.
	Collect func(context.Context) error

	// Judge prints the outcome and returns the number of invariants that do not hold.
	Judge func(io.Writer) int
}

// Run places the load, waits until every saga has ended, stops the fleet, and judges. It
// returns an error unless every invariant holds. With the flag -console it returns when ctx ends.
func (t *Trial[T]) Run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if !t.Flags.Console {
		fmt.Fprintln(stdout, "with -console, or make "+t.Fleet.Program.demoTarget()+" CONSOLE=1, a page shows every saga")
		return t.judgeLoad(ctx, stdout, stderr)
	}
	pages, err := t.Settings.startConsole(ctx, stdout, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return errors.Join(err, t.Fleet.Stop())
	}
	defer func() { err = errors.Join(err, pages.close()) }()
	if err = t.judgeLoad(ctx, stdout, stderr); ctx.Err() == nil {
		fmt.Fprintln(stdout, "the console runs until Ctrl-C")
		<-ctx.Done()
	}
	return err
}

func (t *Trial[T]) judgeLoad(ctx context.Context, stdout, stderr io.Writer) error {
	err := t.driveLoad(ctx, stdout)
	stopped := t.Fleet.Stop()
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted; the processes' logs are in %s", t.Fleet.logs)
	}
	if err != nil {
		return errors.Join(err, t.Fleet.printLogs(stderr))
	}
	violations := t.Judge(stdout)
	if stopped != nil {
		fmt.Fprintln(stdout, "  VIOLATED  every process stops when it is told to:", stopped)
		violations++
	}
	if violations > 0 {
		return errors.Join(fmt.Errorf("invariants that do not hold: %d", violations), t.Fleet.printLogs(stderr))
	}
	fmt.Fprintln(stdout, "\nall invariants hold")
	return os.RemoveAll(t.Fleet.logs)
}

// driveLoad places the load, waits until every saga has ended, and calls Collect.
func (t *Trial[T]) driveLoad(ctx context.Context, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	killing := make(chan struct{})
	go func() {
		defer close(killing)
		t.killProcesses(ctx)
	}()
	reporting := make(chan struct{})
	go func() {
		defer close(reporting)
		t.Load.printProgress(ctx, stdout, t.Fleet)
	}()
	defer func() { cancel(); <-reporting; <-killing }()

	settle, cancelSettle := context.WithCancel(ctx)
	defer cancelSettle()
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		t.Load.AwaitSagas(settle)
	}()
	if err := t.Load.PlaceAll(ctx, t.Flags.Clients); err != nil {
		cancelSettle()
		<-settled
		return err
	}
	<-killing // so that no process is killed after the count
	limit := time.AfterFunc(settleLimit, cancelSettle)
	defer limit.Stop()
	<-settled
	if err := t.Collect(settle); err != nil {
		return err
	}
	return ctx.Err()
}

// killProcesses sends SIGKILL to as many processes as the flags say, while the load is being
// placed.
func (t *Trial[T]) killProcesses(ctx context.Context) {
	members := t.Fleet.members
	for killed := 0; killed < t.Flags.Kills && ctx.Err() == nil; {
		due := float64(killed+1) / float64(t.Flags.Kills+1)
		if t.Load.placedShare() >= due && members[t.Victim(killed, len(members))].sendSignal(os.Kill) {
			killed++
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond)
	}
}
