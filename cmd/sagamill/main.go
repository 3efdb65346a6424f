// Command sagamill is the operator's command.
//
//	sagamill init                    write a new service into a directory
//	sagamill dev                     find or start PostgreSQL and RabbitMQ, and keep them running
//
//	sagamill status                  the state of all schemas on one page, and their problems
//
//	sagamill console                 serve pages on which a person sees every saga, and acts on it
//
//	sagamill migrate up              create or update the tables
//	sagamill migrate print           print the SQL, for people who apply it themselves
//	sagamill migrate roles           print the SQL of database roles with the rights that each process needs
//	sagamill migrate version         say which migrations the schema has had
//	sagamill migrate down            take the schema back to a version; 0 removes every table
//
//	sagamill outbox status           what is unpublished, and which relay publishes; asks the database alone
//	sagamill outbox dead list        messages that the broker refused until their attempts were used up
//	sagamill outbox dead show        all about some of them
//	sagamill outbox dead redrive     publish them again
//	sagamill outbox dead discard     remove them for good
//	sagamill outbox refused list     messages that the broker refuses and that are tried again
//	sagamill outbox refused release  make them dead letters now, and let go what waits behind them
//
//	sagamill dead list               messages that a step could not handle or read, or that are retrying
//	sagamill dead show               all about some of them
//	sagamill dead plan               what a redrive would make of them
//	sagamill dead redrive            run them again
//	sagamill dead edit               change one's payload and headers
//	sagamill dead discard            remove them for good
//	sagamill dead retry              run retrying messages now
//	sagamill dead bury               make dead letters of retrying messages
//
//	sagamill replay                  publish a saga's messages once more, or all of a time range
//
//	sagamill journal                 who has done what to messages, and why
//
//	sagamill saga list               instances of orchestrated sagas
//	sagamill saga show               one's timeline, and what would be undone
//	sagamill saga pause              let it rest, and
//	sagamill saga resume             go on
//	sagamill saga cancel             compensate it
//	sagamill saga compensate         undo what comes after a step, and pause
//	sagamill saga skip               let a step pass for done, or for undone
//	sagamill saga reject             let a step pass for one that has done nothing
//	sagamill saga retry              try again now; this and the verbs above take -all and a filter for many instances
//	sagamill saga check              say which live ones a binary could not finish
//
//	sagamill why                     say where a saga is waiting
//
//	sagamill broker permissions      print commands that give each service its permissions in RabbitMQ
//	sagamill broker declare          declare the exchanges and queues of a topology
//	sagamill broker delete           delete them, unless a queue holds messages or is consumed from
//
//	sagamill topology asyncapi       print an AsyncAPI document of services that describe themselves
//
//	sagamill version                 say which build this is, and which messages and tables it knows
//	sagamill help                    say what a command does and takes, as its -h does
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
	return slices.Concat(dev.Commands(), status.Commands(), console.Commands(), migrate.Commands(), outboxes.Commands(), dead.Commands(), replay.Commands(), journal.Commands(), sagas.Commands(), why.Commands(), broker.Commands(), topology.Commands(), version.Commands())
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
