// Command sagamill is the operator's command.
//
//	sagamill init                    write a new service into a new directory
//	sagamill dev                     find or start PostgreSQL and RabbitMQ, and keep them running
//
//	sagamill status                  print the state of all schemas on one page, and their problems
//
//	sagamill console                 serve web pages on which a person sees sagas and acts on them
//
//	sagamill migrate up              create or update the tables
//	sagamill migrate print           print the SQL of the tables, for people who apply it themselves
//	sagamill migrate roles           print the SQL of database roles that have the privileges that each process needs
//	sagamill migrate version         print how many migrations the schema has had, and which parts it has
//	sagamill migrate down            revert the schema to a version; version 0 removes every table except schema_version
//
//	sagamill outbox status           print how many messages are unpublished, and which relay is active
//	sagamill outbox dead list        list messages that the broker refused until their attempts were used up
//	sagamill outbox dead show        print all details of some dead letters
//	sagamill outbox dead redrive     publish dead letters again
//	sagamill outbox dead discard     remove dead letters for good
//	sagamill outbox refused list     list messages that the broker has refused and that the relay will try again
//	sagamill outbox refused release  turn refused messages into dead letters now, and publish the messages behind them
//
//	sagamill dead list               list dead letters, which a step could not handle or read, or retrying messages
//	sagamill dead show               print all details of some dead letters
//	sagamill dead plan               print what a redrive would do with dead letters
//	sagamill dead redrive            run dead letters again
//	sagamill dead edit               change the payload and the headers of a dead letter
//	sagamill dead discard            remove dead letters for good
//	sagamill dead retry              run retrying messages now
//	sagamill dead bury               turn retrying messages into dead letters now
//
//	sagamill replay                  publish again the stored messages of a saga, or of a time range
//
//	sagamill keys list               list the idempotency keys of requests whose outcome is unknown
//	sagamill keys show               print what is known of the request of a key
//	sagamill keys complete           store an answer for the retries of a request whose outcome is unknown
//	sagamill keys release            let a request whose outcome is unknown run again
//
//	sagamill journal                 list who has changed which messages, and why
//
//	sagamill saga list               list instances of orchestrated sagas
//	sagamill saga show               print the timeline of an instance, and the steps that would be undone
//	sagamill saga pause              pause an instance
//	sagamill saga resume             continue a paused instance
//	sagamill saga cancel             compensate an instance
//	sagamill saga compensate         undo the steps after a step, and pause the instance
//	sagamill saga skip               treat a step as done, or as undone
//	sagamill saga reject             treat a step as a step without effect
//	sagamill saga retry              try a step again now; from pause to retry, -all takes a filter for many
//	sagamill saga check              print which versions have live instances, and which of these a binary cannot finish
//
//	sagamill why                     print where a saga is waiting
//
//	sagamill broker permissions      print the rabbitmqctl commands that give each service its permissions in RabbitMQ
//	sagamill broker declare          declare the exchanges and queues of a topology
//	sagamill broker check            print what is missing of a topology, and which policies lose or delay its messages
//	sagamill broker delete           delete the exchanges and queues of a topology, unless a queue is in use
//
//	sagamill topology asyncapi       print an AsyncAPI document of services that describe themselves
//
//	sagamill version                 print the version of this command, and what it knows of messages and tables
//	sagamill help                    print what a command does and its flags, as -h does
//
// The database is that of -database or DATABASE_URL, the schema that of
// -schema, by default sagamill. All commands but migrate take several, as -schema a,b and with
// -database given several times. A command that lists or changes many goes from schema to schema. A
// command about one instance or letter finds the schema that has it. status, why, and the commands with
// a KEY look at all schemas of the database by default. Each command prints its flags with -h. A
// database or a broker on another machine has to be reached over TLS, unless
// -allow-plaintext or SAGAMILL_ALLOW_PLAINTEXT says otherwise.
//
// A command that changes messages writes a row with -by and -why in the same transaction;
// sagamill journal prints these rows. A change of messages that a filter picks is only previewed
// without -yes.
//
// It names an idempotency key by its digest, as the log of a service does, and prints the key itself with -plain.
//
// It prints text of others, such as keys and the broker's reasons, quoted where it
// is more than visible characters: a terminal obeys none of it. It prints no
// payload unless it is asked to.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/broker"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/console"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/dead"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/dev"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/journal"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/keys"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/migrate"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/outboxes"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/replay"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/sagas"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/status"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/topology"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/version"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/why"
)

func listCommands() []cli.Command {
	return slices.Concat(dev.Commands(), status.Commands(), console.Commands(), migrate.Commands(), outboxes.Commands(), dead.Commands(), replay.Commands(), keys.Commands(), journal.Commands(), sagas.Commands(), why.Commands(), broker.Commands(), topology.Commands(), version.Commands())
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: 0 is success, 1 a failure, 2 wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := errUsage
	if len(args) > 0 && (args[0] == "-version" || args[0] == "--version") {
		args = append([]string{"version"}, args[1:]...)
	}
	if about, asked := asksHelp(args); asked {
		return printHelp(about, stdout, stderr)
	}
	if cmd, rest, found := findCommand(args); found {
		err = cli.NewCall(cmd, rest, stdout, stderr).RunCommand(ctx)
	}
	return reportEnd(err, args, stderr)
}

// reportEnd prints err and returns the exit code.
func reportEnd(err error, args []string, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		if words := findUnknownWords(args); words != "" {
			fmt.Fprintf(stderr, "sagamill: there is no command %q\n", words)
		}
		printUsage(stderr, args)
		return 2
	default:
		fmt.Fprintln(stderr, "sagamill:", cli.EscapeText(strings.Join(strings.Fields(err.Error()), " ")))
		return 1
	}
}
