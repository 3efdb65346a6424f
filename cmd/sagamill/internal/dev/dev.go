// Package dev has the commands for developing a service: init writes one, and dev runs servers for it.
package dev

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/migrations"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{
		{Words: "init", About: "create the directory NAME, and write a new service into it", Run: initService, NoDatabase: true},
		{Words: "dev", About: "find or start PostgreSQL and RabbitMQ, then run the COMMAND; without a COMMAND, print the URLs of both servers, and keep them running until Ctrl-C", Run: runServers, NoDatabase: true},
	}
}

// databaseName is the database that sagamill dev uses on a server that was already running.
const databaseName = "sagamill_dev"

// stopPatience is how long a COMMAND may take to end after a signal.
const stopPatience = time.Minute

// runServers finds or starts the servers and migrates the schemas. Then it waits for Ctrl-C, or runs a command that has
// the servers' URLs in its environment.
func runServers(ctx context.Context, c *cli.Call) (err error) {
	schemas := c.Flags.String("migrate", "", "names of schemas, separated by commas, whose tables sagamill dev creates or updates; not needed for services that use the package sagamill, because they create their tables themselves; default: none")
	if err := parseCommandLine(c); err != nil {
		return err
	}
	services, err := devservices.Start(ctx, &devservices.Options{Log: c.Stderr, KeepDatabase: true, Database: databaseName})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, services.Close()) }()
	for name := range strings.SplitSeq(*schemas, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if err := migrations.Up(ctx, services.DatabaseURL, name); err != nil {
			return err
		}
		fmt.Fprintf(c.Stderr, "sagamill: schema %s is at the newest version\n", name)
	}
	if err := services.Advertise("sagamill dev"); err != nil {
		return err
	}
	if command := c.Flags.Args(); len(command) > 0 {
		return runCommand(ctx, c, services, command)
	}
	fmt.Fprint(c.Stdout, services.Exports())
	fmt.Fprintln(c.Stderr, "sagamill: paste these lines into another terminal; Ctrl-C here ends the servers that were started")
	<-ctx.Done()
	return nil
}

// parseCommandLine reads the flags. A command may follow them.
func parseCommandLine(c *cli.Call) error {
	err := c.Flags.Parse(c.Args)
	if errors.Is(err, flag.ErrHelp) {
		c.PrintHelp()
	}
	return err
}

// runCommand runs command until it ends or ctx does. The command and its children are a process group, which gets the
// signal as a whole, because `go run` does not pass a signal on to its program. A command in its own process group
// cannot read from the terminal.
func runCommand(ctx context.Context, c *cli.Call, services *devservices.Services, command []string) error {
	env := services.Environ(os.Environ())
	if services.AMQPURL == devservices.InProcess {
		env = append(env, "AMQP_URL=")
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = c.Stdout, c.Stderr, env
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	devservices.LeadGroup(cmd.SysProcAttr)
	cmd.Cancel = func() error { return devservices.SignalGroup(cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopPatience
	ignored := make(chan os.Signal, 1) // main's handler ends ctx; nothing else may end this process before its servers
	signal.Notify(ignored, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(ignored)
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return nil
}
