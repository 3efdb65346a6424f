// Command sagamill is the operator's command.
//
//	sagamill migrate up      create or update the tables
//	sagamill migrate print   print the SQL, for people who apply it themselves
//	sagamill migrate version say which migrations the schema has had
//	sagamill migrate down    take the schema back to a version; 0 removes every table
//
// The database is that of -database or DATABASE_URL, the schema that of
// -schema, by default sagamill.
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

	"github.com/sagamill/sagamill/migrations"
)

const usage = `usage: sagamill migrate up|print|version [-schema NAME] [-database URL]
       sagamill migrate down -to VERSION [-schema NAME] [-database URL]

Without -database, DATABASE_URL is used; print needs neither.
`

// errUsage reports a command line that says nothing to do.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: 0 is success, 1 a failure, 2 wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := errUsage
	if len(args) >= 2 && args[0] == "migrate" {
		err = migrate(ctx, args[1], args[2:], stdout, stderr)
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, usage)
		return 2
	default:
		fmt.Fprintln(stderr, "sagamill:", err)
		return 1
	}
}

func migrate(ctx context.Context, verb string, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("sagamill migrate "+verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	schema := flags.String("schema", migrations.DefaultSchema, "")
	database := flags.String("database", os.Getenv("DATABASE_URL"), "")
	to := flags.Int("to", -1, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	if *database == "" && verb != "print" {
		return errors.New("no database: give -database or set DATABASE_URL")
	}
	switch verb {
	case "up":
		return migrations.Up(ctx, *database, *schema)
	case "print":
		return migrations.Print(stdout, *schema)
	case "version":
		applied, known, err := migrations.Version(ctx, *database, *schema)
		if err == nil {
			fmt.Fprintf(stdout, "schema %s has had %d of %d migrations\n", *schema, applied, known)
		}
		return err
	case "down":
		if *to < 0 {
			return errors.New("say how far with -to; 0 removes every table and what it holds")
		}
		return migrations.Down(ctx, *database, *schema, int32(*to))
	}
	return errUsage
}
