// Command trip-saga is the example of package saga. Three services book the flight, the hotel and the
// car of a trip at the same time. Then the trip is ticketed, or the bookings are given back.
//
//	trip-saga serve [-services trip,flight,hotel,car,ticketing,mail] [-listen 127.0.0.1:8080] [-patience 10s]
//	trip-saga demo [-processes]
//	trip-saga plan
//	trip-saga definitions
//
// serve runs the named services, by default all, until SIGINT or SIGTERM. demo runs them all and
// places a mixed load of trips. At the end it checks that no unit is held twice or without a trip.
// plan prints the saga for people, and definitions prints it for sagamill saga check.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/sagamill/sagamill/examples/internal/demo"
	"github.com/sagamill/sagamill/examples/trip-saga/internal/trip"
	"github.com/sagamill/sagamill/saga"
)

const usage = `usage: trip-saga serve [flags]   run services until SIGINT or SIGTERM
       trip-saga demo [flags]    run all services, place a mixed load, check the invariants
       trip-saga plan            print the saga's steps
       trip-saga definitions     print the saga as JSON, for sagamill saga check

trip-saga serve -h and trip-saga demo -h list the flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// runCommand is main without the process. It returns the exit code.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Run(args, map[string]demo.Command{
		"serve":       func(args []string) error { return runServe(ctx, args, stderr) },
		"demo":        func(args []string) error { return runDemo(ctx, args, stdout, stderr) },
		"plan":        func(args []string) error { return printPlan(args, stdout) },
		"definitions": func(args []string) error { return printDefinitions(args, stdout) },
	}, usage, stdout, stderr)
}

// runServe runs services until ctx ends, and then lets them finish their work in hand.
func runServe(ctx context.Context, args []string, stderr io.Writer) error {
	s, err := parseServe(args, stderr)
	if err != nil {
		return err
	}
	return s.Serve(ctx, stderr, func(logger *slog.Logger) error { return newApp(s, logger).Run(ctx, nil) })
}

// printPlan prints the saga for people. It needs no services.
func printPlan(args []string, stdout io.Writer) error {
	d, err := defineTrip("plan", args)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(stdout, d)
	return err
}

// printDefinitions prints the saga for sagamill saga check. It needs no services.
func printDefinitions(args []string, stdout io.Writer) error {
	d, err := defineTrip("definitions", args)
	if err != nil {
		return err
	}
	out := json.NewEncoder(stdout)
	out.SetIndent("", "  ")
	return out.Encode(saga.NewManifest(d))
}

// defineTrip returns the saga for a command that takes no arguments.
func defineTrip(command string, args []string) (*saga.Definition[trip.State], error) {
	if len(args) > 0 {
		return nil, demo.BadSetting("arguments", "%q is not known to %s", args[0], command)
	}
	return trip.DefineSaga(program.Schemas["trip"], defaultPatience)
}
