// Command order-saga is the example of sagamill. An order, a payment and a shipping service take part
// in one choreographed saga. The payment service calls a payment gateway.
//
//	order-saga serve [-services order,payment,shipping,gateway] [-listen 127.0.0.1:8080] [-gateway-plain]
//	order-saga demo [-gateway-plain]
//
// serve runs the named services, by default all, until SIGINT or SIGTERM. demo runs them as separate
// processes and places a mixed load of orders. At the end it checks that no money was lost and
// nothing was done twice.
package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/examples/internal/demo"
)

const usage = `usage: order-saga serve [flags]   run services until SIGINT or SIGTERM
       order-saga demo [flags]    run all services, place a mixed load, check the invariants

order-saga serve -h and order-saga demo -h list the flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// runCommand is main without the process. It returns the exit code.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Run(args, map[string]demo.Command{
		"serve": func(args []string) error { return runServe(ctx, args, stderr) },
		"demo":  func(args []string) error { return runDemo(ctx, args, stdout, stderr) },
	}, usage, stdout, stderr)
}

// runServe runs services until ctx ends, and then lets them finish their work in hand.
func runServe(ctx context.Context, args []string, stderr io.Writer) error {
	s, err := parseServe(args, stderr)
	if err != nil {
		return err
	}
	return s.Serve(ctx, stderr, func(logger *slog.Logger) error {
		traces, err := openTracing(s.trace, stderr)
		if err != nil {
			return err
		}
		err = newApp(s, traces, logger).Run(ctx, nil)
		finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesTimeout)
		defer cancel()
		return errors.Join(err, traces.closeProviders(finish))
	})
}

// tracesTimeout limits how long the last traces may take to be written.
const tracesTimeout = 30 * time.Second
