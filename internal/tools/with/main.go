// Command with runs a program with the development services at hand:
//
//	with [-keep-database] [-own] [-pooler] [-program NAME] [--] COMMAND [ARGUMENT…]
//
// COMMAND gets DATABASE_URL, AMQP_URL, REDIS_URL and NATS_URL; with -pooler, DATABASE_DIRECT_URL leads
// past it. Its exit code is with's own; 1 also means that there are no services.
// In the end it says on standard error which tests did not run (internal/testing/needtest). Without COMMAND the services
// are held, and their URLs printed, until a signal comes.
//
// With -own, COMMAND runs tests: SAGAMILL_PACE has the flags of `go test` that suit the connections which PostgreSQL has
// free. With -program, a missing program is installed first, because tests install nothing: `go test` would hide it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/sagamill/sagamill/internal/devservices"
)

func main() {
	keep := flag.Bool("keep-database", false, "use the database that is found as it is, making none for this run")
	own := flag.Bool("own", false, "start servers for this run, where they are installed, rather than use what is found")
	pooler := flag.Bool("pooler", false, "put a pgbouncer in transaction mode before the database")
	var needed programs
	flag.Var(&needed, "program", "install this program if it is missing, after a line that says so; may be repeated")
	flag.Parse()
	code, err := runWith(needed, &devservices.Options{KeepDatabase: *keep, Own: *own, Pooler: *pooler, Redis: true, NATS: true}, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runWith(needed programs, opts *devservices.Options, command []string) (code int, err error) {
	// From here on no signal ends us before the services are stopped.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	if err := needed.install(ctx, os.Stderr); err != nil {
		return 1, err
	}
	services, err := devservices.Start(ctx, opts)
	if errors.Is(err, devservices.ErrNoRabbitMQ) {
		return tellNoRabbitMQ(err, os.Stderr)
	}
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, services.Close()) }()
	if len(command) == 0 {
		fmt.Print(services.Exports())
		<-ctx.Done()
		return 0, nil
	}
	env := services.Environ(os.Environ())
	if opts.Own {
		if env, err = addPace(ctx, services, env, os.Stderr); err != nil {
			return 1, err
		}
	}
	env, tell, err := collectNotTested(env, os.Stderr)
	if err != nil {
		return 1, err
	}
	defer tell()
	return runCommand(command, env, signals)
}

// notTestedVariable names the file to which internal/testing/needtest writes what did not run.
const notTestedVariable = "SAGAMILL_NOT_TESTED"

// collectNotTested returns env with a file for what is not tested, and what prints that in
// the end: `go test` does not, and would look as if it had tested everything.
func collectNotTested(env []string, to io.Writer) (with []string, tell func(), err error) {
	f, err := os.CreateTemp("", "sagamill-not-tested-")
	if err != nil {
		return nil, nil, err
	}
	_ = f.Close()
	return append(env, notTestedVariable+"="+f.Name()), func() {
		text, _ := os.ReadFile(f.Name())
		_ = os.Remove(f.Name())
		if len(text) > 0 {
			fmt.Fprintf(to, "\nwith: of the tests these did not run:\n%s", text)
		}
	}, nil
}

// requireVariable names what must not be missing (internal/testing/needtest).
const requireVariable = "SAGAMILL_REQUIRE"

// tellNoRabbitMQ ends a run whose version of RabbitMQ cannot be had. That is an error if SAGAMILL_REQUIRE names the
// version, as rabbitmq-4.3. Otherwise nothing is tested, and the output says so.
func tellNoRabbitMQ(reason error, to io.Writer) (int, error) {
	version, err := devservices.RabbitVersion()
	if err != nil {
		return 1, err
	}
	for name := range strings.SplitSeq(os.Getenv(requireVariable), ",") {
		if strings.TrimSpace(name) == "rabbitmq-"+version {
			return 1, fmt.Errorf("%s asks for rabbitmq-%s: %w", requireVariable, version, reason)
		}
	}
	fmt.Fprintf(to, "\nwith: NOT TESTED: RabbitMQ %s: %v\n", version, reason)
	return 0, nil
}

// runCommand runs command to its end, passing signals on. From a terminal it
// gets Ctrl-C twice, once from there and once from us.
func runCommand(command, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, env
	// Without its services the command would only fail, slowly.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	devservices.DieWithParent(cmd.SysProcAttr, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			_ = cmd.Process.Signal(sig) // it may just have ended
		case err := <-done:
			return exitCode(err)
		}
	}
}

// exitCode is what a shell would make of how the program ended.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
