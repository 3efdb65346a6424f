// Command chaos runs two processes of each service of both examples, on a private PostgreSQL and a private
// RabbitMQ. It kills, hangs, cuts off and starves them while clients use them. At the end it judges the
// evidence that the run has left.
//
//	chaos run [flags]           a run; its directory is printed first
//	chaos run -cluster [flags]  a load on a cluster of RabbitMQ under faults, each of them measured
//	chaos check DIR             judge a run again, by its directory alone
//
// It exits with 0 if every invariant holds and every fault has struck. It exits with 1 if an invariant does not
// hold, and with 3 if the run is void: a required fault has not struck, or a figure misses its goal. It exits
// with 2 after a mistake of the caller or a failure of the harness.
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

	"github.com/sagamill/sagamill/chaos/internal/judge"
	"github.com/sagamill/sagamill/chaos/internal/report"
)

// The exit codes.
const (
	exitGreen  = 0
	exitRed    = 1
	exitFailed = 2
	exitVoid   = 3
)

const usage = `usage:
  chaos run [flags]           run the examples under faults and judge what is left; -h lists the flags
  chaos run -cluster [flags]  run a load on a cluster of RabbitMQ under faults and measure each; -cluster -h lists the flags
  chaos check DIR             judge a run again by its directory
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitFailed
	}
	var err error
	code := exitFailed
	switch args[0] {
	case "run":
		code, err = runStorm(ctx, args[1:], stdout, stderr)
	case "check":
		code, err = judgeDirectory(args[1:], stdout)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return exitGreen
	default:
		err = fmt.Errorf("there is no command %q\n%s", args[0], usage)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitGreen
	case err != nil:
		fmt.Fprintln(stderr, "chaos:", err)
		return exitFailed
	}
	return code
}

// judgeDirectory judges the run in a directory, and writes its reports anew.
func judgeDirectory(args []string, stdout io.Writer) (int, error) {
	if len(args) != 1 {
		return exitFailed, errors.New("check needs the directory of one run")
	}
	return writeVerdict(args[0], stdout)
}

// writeVerdict judges the run in dir, writes the reports there and prints one.
func writeVerdict(dir string, stdout io.Writer) (int, error) {
	v, err := judge.JudgeRun(dir)
	if err != nil {
		return exitFailed, fmt.Errorf("judge %s: %w", dir, err)
	}
	if err := report.WriteFiles(dir, v); err != nil {
		return exitFailed, err
	}
	if err := report.WriteText(stdout, v); err != nil {
		return exitFailed, err
	}
	switch v.Outcome {
	case judge.Green:
		return exitGreen, nil
	case judge.Void:
		return exitVoid, nil
	default:
		return exitRed, nil
	}
}
