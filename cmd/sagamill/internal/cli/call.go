package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/saga"
)

const (
	// connectTimeout limits how long a database may take to accept a connection.
	connectTimeout = 10 * time.Second

	// ReadTimeout limits how long a command that only reads may take. A command that changes
	// something continues in batches until it is done or interrupted.
	ReadTimeout = time.Minute

	maxConns = 2
)

// A Call is one run of a command, with its command line, input and outputs.
type Call struct {
	Command        Command
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Flags          *flag.FlagSet
	Args           []string
	MaxConns       int32 // of the pool of each database; default: 2

	schemas     *string
	databases   *urlList
	operators   *urlList // nil: the command has no such flag
	plaintext   *bool
	changes     bool  // the command changes something: see MarkChange
	environment error // of a variable with a bad value
}

// NewCall returns a call of cmd with the flags that all commands have.
func NewCall(cmd Command, args []string, stdout, stderr io.Writer) *Call {
	c := &Call{Command: cmd, Stdin: os.Stdin, Stdout: stdout, Stderr: stderr, Args: args, MaxConns: maxConns, Flags: flag.NewFlagSet(cmd.Words, flag.ContinueOnError)}
	c.Flags.SetOutput(io.Discard) // main prints the error, and PrintHelp the flags
	c.schemas = c.Flags.String("schema", migrations.DefaultSchema, "schema of the tables; default: "+migrations.DefaultSchema)
	c.databases = newURLList(os.Getenv("DATABASE_URL"))
	c.Flags.Var(c.databases, "database", "URL of the database; default: the environment variable DATABASE_URL")
	allowed, err := plaintext.Allowed()
	c.plaintext, c.environment = c.Flags.Bool(plaintext.Flag, allowed, plaintext.Usage), err
	return c
}

// AllowsPlaintext reports whether connections to other machines may be without TLS.
func (c *Call) AllowsPlaintext() bool { return *c.plaintext }

// RunCommand runs the command. If the schema has no tables of sagamill, or not the instance, the
// error names schemas that may be meant.
func (c *Call) RunCommand(ctx context.Context) error {
	err := c.Command.Run(ctx, c)
	if sqlschema.Missing(err) && !c.IsGiven([]string{"schema"}) || c.aboutSagas() && errors.Is(err, saga.ErrNoInstance) {
		return c.nameSchemas(ctx, err)
	}
	return err
}

// aboutSagas reports whether the command is about instances.
func (c *Call) aboutSagas() bool { return strings.HasPrefix(c.Command.Words, "saga ") }

// nameSchemas adds to err the schemas that have tables, or for a command about instances the schemas
// that have sagas. err says that the command's schema has none.
func (c *Call) nameSchemas(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	targets, openErr := c.openTargets(ctx, EverySchema, nil)
	if openErr != nil {
		return err
	}
	defer targets.Close()
	all := targets.All
	if len(all) == 0 {
		return err
	}
	if !c.aboutSagas() {
		return fmt.Errorf("%w say which with -schema: there are tables of sagamill in %s", err, JoinNames(all))
	}
	with := slices.DeleteFunc(slices.Clone(all), func(t *Target) bool { return !t.hasSagas(ctx) })
	meant := func(t *Target) bool { return slices.Contains(c.schemaNames(), t.Schema) }
	switch {
	case len(with) == 0 && sqlschema.Missing(err):
		return fmt.Errorf("%w (say which schema with -schema: there are tables of sagamill in %s, and no sagas in any of them)", err, JoinNames(all))
	case len(with) == 0:
		return fmt.Errorf("%w (there are no sagas in any of %s)", err, JoinNames(all))
	case !c.IsGiven([]string{"schema"}) && !sqlschema.Missing(err):
		return fmt.Errorf("%w in any of %s", err, JoinNames(with))
	case slices.ContainsFunc(with, meant):
		return err
	default:
		return fmt.Errorf("%w (say which schema with -schema: there are sagas in %s)", err, JoinNames(with))
	}
}

// ParseFlags reads the command line, which consists of flags alone.
func (c *Call) ParseFlags() error {
	err := c.Flags.Parse(c.Args)
	if errors.Is(err, flag.ErrHelp) {
		c.PrintHelp()
	}
	if err == nil && c.Flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag; -h lists the flags of %s", c.Flags.Arg(0), c.Command.Words)
	}
	return cmp.Or(err, c.environment)
}

// ParseDatabaseFlags is [Call.ParseFlags] for a command that needs a database. It returns an error if
// there is no database, or if it is on another machine without TLS.
func (c *Call) ParseDatabaseFlags() error {
	if err := c.ParseFlags(); err != nil {
		return err
	}
	return c.checkDatabases()
}

// checkDatabases returns an error if there is no database, or if one is on another machine without TLS.
func (c *Call) checkDatabases() error {
	if err := c.findDatabase(); err != nil {
		return err
	}
	if err := c.checkPlaintext("-database, or DATABASE_URL without it", c.databases.urls); err != nil {
		return err
	}
	if c.operators == nil {
		return nil
	}
	return c.checkPlaintext("-operator-database", c.operators.urls)
}

// checkPlaintext returns an error if one of urls is on another machine without TLS. A malformed URL is an error when it is
// opened.
func (c *Call) checkPlaintext(flag string, urls []string) error {
	for _, url := range urls {
		if err := plaintext.Database(url); errors.Is(err, plaintext.ErrRefused) && !*c.plaintext {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	return nil
}

// findDatabase chooses a database if the command line names none: that of a program of this user that advertises one,
// such as make demo or sagamill dev. It returns an error if there are several such programs.
func (c *Call) findDatabase() error {
	if len(c.databases.urls) > 0 {
		c.noteOtherServers()
		return nil
	}
	running, err := c.findAdvertised("database", "DATABASE_URL")
	if err == nil {
		c.databases.urls = []string{running.DatabaseURL}
	}
	return err
}

// noteOtherServers says that DATABASE_URL names another database than that of a running program that advertises one: a
// person who has left the variable set would take one for the other.
func (c *Call) noteOtherServers() {
	if c.IsGiven([]string{"database"}) {
		return
	}
	running := devservices.FindAdvertised()
	here := func(r devservices.Advertised) bool { return slices.Contains(c.databases.urls, r.DatabaseURL) }
	if len(running) > 0 && !slices.ContainsFunc(running, here) {
		fmt.Fprintf(c.Stderr, "sagamill: using DATABASE_URL, and not the database of the running %s\n", running[0].Program)
	}
}

// FindBroker does the same for the URL of the broker, which the flag -amqp names.
func (c *Call) FindBroker(url *string) error {
	if *url != "" {
		return nil
	}
	running, err := c.findAdvertised("amqp", "AMQP_URL")
	if err == nil && (running.AMQPURL == "" || running.AMQPURL == devservices.InProcess) {
		return fmt.Errorf("no broker: the running %s has one that only it can use; give -amqp or set AMQP_URL", running.Program)
	}
	*url = running.AMQPURL
	return err
}

// findAdvertised returns the only program of this user that advertises its servers, if the flag was not given. Programs
// that advertise the same servers count as one.
func (c *Call) findAdvertised(flag, variable string) (found devservices.Advertised, err error) {
	what := map[string]string{"database": "database", "amqp": "broker"}[flag]
	var running []devservices.Advertised
	if !c.IsGiven([]string{flag}) {
		running = devservices.FindAdvertised()
		slices.SortStableFunc(running, func(a, b devservices.Advertised) int { return strings.Compare(a.DatabaseURL, b.DatabaseURL) })
		running = slices.CompactFunc(running, func(a, b devservices.Advertised) bool { // two programs with the same servers
			return a.DatabaseURL == b.DatabaseURL && a.AMQPURL == b.AMQPURL
		})
	}
	switch len(running) {
	case 0:
		if c.IsGiven([]string{flag}) {
			return found, fmt.Errorf("no %s: give -%s or set %s", what, flag, variable)
		}
		return found, fmt.Errorf("no %s: give -%s, set %s, or let sagamill dev run beside this command", what, flag, variable)
	case 1:
		fmt.Fprintf(c.Stderr, "sagamill: using the %s of the running %s\n", what, running[0].Program)
		return running[0], nil
	}
	names := make([]string, len(running))
	for i := range running {
		names[i] = running[i].Program
	}
	return found, fmt.Errorf("no %s: give -%s or set %s, because several running programs have one: %s", what, flag, variable, strings.Join(names, ", "))
}

// PrintHelp prints the command's flags.
func (c *Call) PrintHelp() {
	fmt.Fprintf(c.Stdout, "sagamill %s: %s\n\n", c.Command.Words, c.Command.About)
	width := 0
	c.Flags.VisitAll(func(f *flag.Flag) { width = max(width, len(f.Name)) })
	c.Flags.VisitAll(func(f *flag.Flag) {
		if c.Command.isWithoutDatabase() && (f.Name == "schema" || f.Name == "database") {
			return
		}
		fmt.Fprintf(c.Stdout, "  -%-*s %s\n", width, f.Name, f.Usage)
	})
}
