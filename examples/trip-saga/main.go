// Command trip-saga is the example of package saga: a trip whose flight, hotel and
// car are booked at the same time by services of their own, and then ticketed, or
// else given back.
//
//	trip-saga serve [-services trip,flight,hotel,car,ticketing,mail] [-listen 127.0.0.1:8080] [-patience 10s]
//	trip-saga demo [-processes]
//	trip-saga plan
//	trip-saga definitions
//
// serve runs the services named, all of them by default, until it is told to
// stop. demo runs them all, places a mixed load of trips and checks at the end
// that nothing is held twice or for nobody. plan prints the saga for people, and definitions
// for sagamill saga check.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

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
	case "plan", "definitions":
		err = printSaga(args, stdout)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "trip-saga: there is no command %q\n%s", args[0], usage)
		return 2
	}
	var setting *settingError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &setting):
		fmt.Fprintln(stderr, "trip-saga:", err)
		return 2
	default:
		fmt.Fprintln(stderr, "trip-saga:", err)
		return 1
	}
}

// printSaga prints what this program can finish. It needs no services.
func printSaga(args []string, stdout io.Writer) error {
	if len(args) > 1 {
		return badSetting("arguments", "%q is not known to %s", args[1], args[0])
	}
	d, err := trip.Define(schemaOf("trip"), defaultPatience)
	if err != nil {
		return err
	}
	if args[0] == "plan" {
		_, err = fmt.Fprint(stdout, d)
		return err
	}
	out := json.NewEncoder(stdout)
	out.SetIndent("", "  ")
	return out.Encode(saga.NewManifest(d))
}
