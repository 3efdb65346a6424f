package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// demoPatience is the least time that the demo takes, since some of its trips wait for their
// deadline. If it is too short for others, they are compensated and counted.
const demoPatience = 5 * time.Second

// demoFlags are the flags of demo.
type demoFlags struct {
	*demo.DemoFlags
	processes bool
	patience  time.Duration
}

func parseDemo(args []string, stderr io.Writer) (*demoFlags, error) {
	f := &demoFlags{DemoFlags: program.NewDemoFlags(stderr)}
	f.BoolVar(&f.processes, "processes", false, "run each service in a process of its own instead of all in this one")
	f.DurationVar(&f.patience, "patience", demoPatience, "how long a booking is waited for")
	if err := f.ParseArgs(args); err != nil {
		return nil, err
	}
	if f.Kills > 0 && !f.processes {
		return nil, demo.BadSetting("-kill", "without -processes there is no process to kill but this one")
	}
	return f, checkPatience(f.patience)
}

// runDemo runs every service, places a mixed load, and returns an error unless every invariant
// holds in the end.
func runDemo(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags, err := parseDemo(args, stderr)
	if err != nil {
		return err
	}
	servers, common, err := program.StartServers(ctx, stderr)
	if err != nil {
		return err
	}
	defer servers.Close()
	s := &settings{Settings: *common, patience: flags.patience}
	if s.IsInProcess() && flags.processes {
		return demo.BadSetting("-processes", "without RabbitMQ the services can only run in one process")
	}
	defer s.RemoveQueues(stderr)
	launch := &demo.Launch{
		Settings: &s.Settings, Together: !flags.processes, Environ: servers.Environ,
		NewApp:    func(logger *slog.Logger) *demo.App { return newApp(s, logger) },
		ServeArgs: func(string, map[string]string) []string { return []string{"-patience", s.patience.String()} },
	}
	fleet, err := launch.Start(ctx, stdout)
	if err != nil {
		return err
	}
	load := newLoad(fleet.URLs["trip"], flags.Items)
	r := &result{trips: load.Items, patience: flags.patience}
	trial := &demo.Trial[*placed]{
		Settings: &s.Settings, Fleet: fleet, Load: &load.Load, Flags: flags.DemoFlags,
		Victim: func(killed, n int) int { return killed % n }, // the orchestrator first
		Collect: func(ctx context.Context) (err error) {
			r.left = fleet.AwaitEmpty(ctx)
			r.ledgers, err = fetchLedgers(ctx, fleet.URLs)
			return err
		},
		Judge: r.judgeDemo,
	}
	return trial.Run(ctx, stdout, stderr)
}
