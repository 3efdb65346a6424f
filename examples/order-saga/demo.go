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
	maxOrders   = 10_000
	maxKills    = 1_000
	maxClients  = 64
	settleLimit = 2 * time.Minute // from the last order placed until every saga has ended
)

type demoOptions struct {
	orders, clients, kills int
	together, plain        bool
}

func parseDemo(args []string, stderr io.Writer) (demoOptions, error) {
	var o demoOptions
	flags := flag.NewFlagSet("order-saga demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&o.orders, "orders", 200, "orders to place")
	flags.IntVar(&o.clients, "clients", 8, "clients that place them at the same time")
	flags.IntVar(&o.kills, "kill", 0, "how often to SIGKILL one of the service processes meanwhile")
	flags.BoolVar(&o.together, "together", false, "run all services in this process instead of one each")
	flags.BoolVar(&o.plain, "gateway-plain", false, "with a payment gateway that charges each time it is called, whatever the Idempotency-Key")
	flags.Usage = func() {
		flags.SetOutput(stderr)
		fmt.Fprintln(stderr, "usage: order-saga demo [flags]")
		flags.PrintDefaults()
	}
	if err := parse(flags, args); err != nil {
		return o, err
	}
	switch {
	case o.orders < 1 || o.orders > maxOrders:
		return o, badSetting("-orders", "%d is not between 1 and %d", o.orders, maxOrders)
	case o.clients < 1 || o.clients > maxClients:
		return o, badSetting("-clients", "%d is not between 1 and %d", o.clients, maxClients)
	case o.kills < 0 || o.kills > maxKills:
		return o, badSetting("-kill", "%d is not between 0 and %d", o.kills, maxKills)
	case o.kills > 0 && o.together:
		return o, badSetting("-kill", "with -together there is no process to kill but this one")
	}
	return o, nil
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
		services: serviceNames, patience: readyLimit, namespace: "demo-" + strings.ToLower(rand.Text()[:10]),
		databaseURL: provided.DatabaseURL, amqpURL: provided.AMQPURL, gatewayPlain: o.plain,
	}
	if s.allowPlaintext, err = plaintext.Allowed(); err != nil {
		return badSetting(plaintext.Variable, "it is neither true nor false")
	}
	s.listen = "127.0.0.1:0"
	if err := s.checkPlaintext(); err != nil {
		return err
	}
	if s.amqpURL == devservices.InProcess && !o.together {
		if o.kills > 0 {
			return badSetting("-kill", "without RabbitMQ the services run in this process, so there is none to kill")
		}
		fmt.Fprintln(stdout, "no RabbitMQ can be had: all services run in this process, on the in-process broker")
		o.together = true
	}
	defer removeQueues(s, stderr)
	fleet, err := launch(ctx, s, o.together, provided.Environ, stdout)
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
	violations := result.print(stdout)
	if stopped != nil {
		fmt.Fprintln(stdout, "  VIOLATED  every process stops when it is told to:", stopped)
		violations++
	}
	if violations > 0 {
		return errors.Join(fmt.Errorf("invariants that do not hold: %d", violations), fleet.explain(stderr))
	}
	fmt.Fprintln(stdout, "\nall invariants hold")
	return os.RemoveAll(fleet.logs)
}

// drive places the orders, waits until every saga has ended, and collects what
// there is to judge.
func drive(ctx context.Context, f *fleet, o demoOptions, stdout io.Writer) (*result, error) {
	load := newLoad(f.urls["order"], o.orders)
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
	r := &result{orders: load.orders}
	var err error
	if r.ledger, err = fetchLedger(settle, f.urls["gateway"]); err != nil {
		return nil, err
	}
	r.left = f.awaitEmpty(settle)
	return r, ctx.Err()
}
