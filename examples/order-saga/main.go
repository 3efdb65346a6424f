// Command order-saga is the example of sagamill: an order, a payment and a
// shipping service that take part in one choreographed saga, and the payment
// gateway that one of them calls.
//
//	order-saga serve [-services order,payment,shipping,gateway] [-listen 127.0.0.1:8080] [-gateway-plain]
//	order-saga demo [-gateway-plain]
//
// serve runs the services named, all of them by default, until it is told to
// stop. demo runs them as separate processes, places a mixed load of orders
// and checks at the end that no money was lost and nothing was done twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: order-saga serve [flags]   run services until SIGINT or SIGTERM
       order-saga demo [flags]    run all services, place a mixed load, check the invariants

order-saga serve -h and order-saga demo -h list the flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: 0 is success, 1 a failure, 2 wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "serve":
		err = serve(ctx, args[1:], stderr)
	case "demo":
		err = demo(ctx, args[1:], stdout, stderr)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "order-saga: there is no command %q\n%s", args[0], usage)
		return 2
	}
	var setting *settingError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &setting):
		fmt.Fprintln(stderr, "order-saga:", err)
		return 2
	default:
		fmt.Fprintln(stderr, "order-saga:", err)
		return 1
	}
}
