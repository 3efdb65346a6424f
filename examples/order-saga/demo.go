package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

// demoFlags are the flags of demo.
type demoFlags struct {
	*demo.DemoFlags
	together, plain bool
}

func parseDemo(args []string, stderr io.Writer) (*demoFlags, error) {
	f := &demoFlags{DemoFlags: program.NewDemoFlags(stderr)}
	f.BoolVar(&f.together, "together", false, "run all services in this process instead of one each")
	f.BoolVar(&f.plain, "gateway-plain", false, "with a payment gateway that charges each time it is called, whatever the Idempotency-Key")
	if err := f.ParseArgs(args); err != nil {
		return nil, err
	}
	if f.Kills > 0 && f.together {
		return nil, demo.BadSetting("-kill", "with -together there is no process to kill but this one")
	}
	return f, nil
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
	s := &settings{Settings: *common, gatewayPlain: flags.plain}
	if s.IsInProcess() && !flags.together {
		if flags.Kills > 0 {
			return demo.BadSetting("-kill", "without RabbitMQ the services run in this process, so there is none to kill")
		}
		fmt.Fprintln(stdout, "no RabbitMQ can be had: all services run in this process, on the in-process broker")
		flags.together = true
	}
	defer s.RemoveQueues(stderr)
	fleet, err := newLaunch(s, flags.together, servers.Environ).Start(ctx, stdout)
	if err != nil {
		return err
	}
	load := newLoad(fleet.URLs["order"], flags.Items)
	r := &result{orders: load.Items}
	trial := &demo.Trial[*placed]{
		Settings: &s.Settings, Fleet: fleet, Load: &load.Load, Flags: flags.DemoFlags,
		Victim: func(_, n int) int { return rand.IntN(n) },
		Collect: func(ctx context.Context) (err error) {
			if r.ledger, err = fetchLedger(ctx, fleet.URLs["gateway"]); err == nil {
				r.left = fleet.AwaitEmpty(ctx)
			}
			return err
		},
		Judge: r.judgeDemo,
	}
	return trial.Run(ctx, stdout, stderr)
}

// newLaunch returns the launch of the services of s.
func newLaunch(s *settings, together bool, environ func([]string) []string) *demo.Launch {
	return &demo.Launch{
		Settings: &s.Settings, Together: together, Environ: environ,
		NewApp: func(logger *slog.Logger) *demo.App { return newApp(s, nil, logger) },
		ServeArgs: func(service string, urls map[string]string) []string {
			args := []string{fmt.Sprintf("-gateway-plain=%t", s.gatewayPlain)}
			if service == "payment" {
				args = append(args, "-gateway-url", urls["gateway"])
			}
			if s.trace != "" {
				args = append(args, "-trace", s.trace)
			}
			return args
		},
	}
}
