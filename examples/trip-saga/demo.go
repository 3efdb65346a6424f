package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/tools/devservices"
)

// The limits of a demo.
const (
	maxTrips    = 10_000
	maxKills    = 1_000
	maxClients  = 64
	settleLimit = 2 * time.Minute // from the last trip placed until every saga has ended

	// demoPatience is what the demo takes at least: it has trips that wait for their deadline.
	// Where it is too short for others, they are compensated and counted.
	demoPatience = 5 * time.Second
)

type demoOptions struct {
	trips, clients, kills int
	processes             bool
	patience              time.Duration
}

func parseDemo(args []string, stderr io.Writer) (demoOptions, error) {
	var o demoOptions
	flags := flag.NewFlagSet("trip-saga demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&o.trips, "trips", 200, "trips to place")
	flags.IntVar(&o.clients, "clients", 8, "clients that place them at the same time")
	flags.IntVar(&o.kills, "kill", 0, "how often to SIGKILL one of the service processes meanwhile")
	flags.BoolVar(&o.processes, "processes", false, "run each service in a process of its own instead of all in this one")
	flags.DurationVar(&o.patience, "patience", demoPatience, "how long a booking is waited for")
	flags.Usage = func() {
		flags.SetOutput(stderr)
		fmt.Fprintln(stderr, "usage: trip-saga demo [flags]")
		flags.PrintDefaults()
	}
	if err := parse(flags, args); err != nil {
		return o, err
	}
	switch {
	case o.trips < 1 || o.trips > maxTrips:
		return o, badSetting("-trips", "%d is not between 1 and %d", o.trips, maxTrips)
	case o.clients < 1 || o.clients > maxClients:
		return o, badSetting("-clients", "%d is not between 1 and %d", o.clients, maxClients)
	case o.kills < 0 || o.kills > maxKills:
		return o, badSetting("-kill", "%d is not between 0 and %d", o.kills, maxKills)
	case o.kills > 0 && !o.processes:
		return o, badSetting("-kill", "without -processes there is no process to kill but this one")
	}
	return o, checkPatience(o.patience)
}

// demo runs every service, places a mixed load, and returns an error unless
// every invariant holds in the end.
func demo(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseDemo(args, stderr)
	if err != nil {
		return err
	}
	provided, err := devservices.Start(ctx, &devservices.Options{Log: stderr})
	if err != nil {
		return err
	}
	defer provided.Close()

	s := &settings{
		services: serviceNames, startTimeout: readyLimit, patience: o.patience, namespace: "demo-" + strings.ToLower(rand.Text()[:10]),
		databaseURL: provided.DatabaseURL, amqpURL: provided.AMQPURL,
	}
	if s.allowPlaintext, err = plaintext.Allowed(); err != nil {
		return badSetting(plaintext.Variable, "it is neither true nor false")
	}
	s.listen = "127.0.0.1:0"
	if err := s.checkPlaintext(); err != nil {
		return err
	}
	if s.amqpURL == devservices.InProcess && o.processes {
		return badSetting("-processes", "without RabbitMQ the services can only run in one process")
	}
	defer removeQueues(s, stderr)
	fleet, err := launch(ctx, s, !o.processes, provided.Environ, stdout)
	if err != nil {
		return err
	}
	result, err := drive(ctx, fleet, o, stdout)
	stopped := fleet.stop()
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted; the processes' logs are in %s", fleet.logs)
	}
	if err != nil {
		return errors.Join(err, fleet.explain(stderr))
	}
	return judge(result, fleet, stopped, stdout, stderr)
}

// judge prints what came of a demo, and returns an error if something is wrong.
func judge(r *result, f *fleet, stopped error, stdout, stderr io.Writer) error {
	violations := r.print(stdout)
	if stopped != nil {
		fmt.Fprintln(stdout, "  VIOLATED  every process stops when it is told to:", stopped)
		violations++
	}
	if violations > 0 {
		return errors.Join(fmt.Errorf("invariants that do not hold: %d", violations), f.explain(stderr))
	}
	fmt.Fprintln(stdout, "\nall invariants hold")
	return os.RemoveAll(f.logs)
}

// drive places the trips, waits until every saga has ended, and collects what
// there is to judge.
func drive(ctx context.Context, f *fleet, o demoOptions, stdout io.Writer) (*result, error) {
	load := newLoad(f.urls["trip"], o.trips)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	killing := make(chan struct{})
	go func() {
		defer close(killing)
		f.killSome(ctx, o.kills, load.progress)
	}()
	reporting := make(chan struct{})
	go func() {
		defer close(reporting)
		load.report(ctx, stdout, f)
	}()
	defer func() { cancel(); <-reporting; <-killing }()

	settle, cancelSettle := context.WithCancel(ctx)
	defer cancelSettle()
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		load.awaitEnd(settle)
	}()
	if err := load.place(ctx, o.clients); err != nil {
		cancelSettle()
		<-settled
		return nil, err
	}
	<-killing // a late kill must not be one after the count
	limit := time.AfterFunc(settleLimit, cancelSettle)
	defer limit.Stop()
	<-settled
	r := &result{trips: load.trips, patience: o.patience, left: f.awaitEmpty(settle)}
	var err error
	if r.ledgers, err = fetchLedgers(settle, f.urls); err != nil {
		return nil, err
	}
	return r, ctx.Err()
}
