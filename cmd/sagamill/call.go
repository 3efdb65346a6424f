package main

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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/plaintext"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/saga"
)

const (
	// connectTimeout is how long a database may take to answer at all.
	connectTimeout = 10 * time.Second

	// readTimeout is how long looking something up may take. What changes
	// something goes on in batches until it is done or interrupted.
	readTimeout = time.Minute

	maxConns = 2
)

// A call is one run of a command: where it prints, and its command line.
type call struct {
	command        command
	stdin          io.Reader
	stdout, stderr io.Writer
	flags          *flag.FlagSet
	args           []string

	schema, database *string
	allowPlaintext   *bool
	environment      error // what is wrong with it
}

func newCall(cmd command, args []string, stdout, stderr io.Writer) *call {
	c := &call{command: cmd, stdin: os.Stdin, stdout: stdout, stderr: stderr, args: args, flags: flag.NewFlagSet(cmd.words, flag.ContinueOnError)}
	c.flags.SetOutput(io.Discard) // run prints the error, and help is printed here
	c.schema = c.flags.String("schema", migrations.DefaultSchema, "schema of the tables; default: "+migrations.DefaultSchema)
	c.database = c.flags.String("database", os.Getenv("DATABASE_URL"), "URL of the database; default: DATABASE_URL")
	allowed, err := plaintext.Allowed()
	c.allowPlaintext, c.environment = c.flags.Bool(plaintext.Flag, allowed, plaintext.Usage), err
	return c
}

// run runs the command.
func (c *call) run(ctx context.Context) error {
	err := c.command.run(ctx, c)
	if sqlschema.Missing(err) && !c.given([]string{"schema"}) || c.aboutSagas() && errors.Is(err, saga.ErrNoInstance) {
		return c.nameSchemas(ctx, err)
	}
	return err
}

// aboutSagas reports whether the command is about instances of one schema.
func (c *call) aboutSagas() bool { return strings.HasPrefix(c.command.words, "saga ") }

// nameSchemas adds to err, that the command has not found what it is about in its schema,
// where there is some.
func (c *call) nameSchemas(ctx context.Context, err error) error {
	db, openErr := c.open(ctx)
	if openErr != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	all, listErr := migrations.Schemas(ctx, db)
	if listErr != nil || len(all) == 0 {
		return err
	}
	if !c.aboutSagas() {
		return fmt.Errorf("%w say which with -schema: there are tables of sagamill in %s", err, listSchemas(all))
	}
	with := slices.DeleteFunc(slices.Clone(all), func(s migrations.Schema) bool { return !hasSagas(ctx, db, &s) })
	switch {
	case len(with) == 0 && sqlschema.Missing(err):
		return fmt.Errorf("%w (say which schema with -schema: there are tables of sagamill in %s, and no sagas in any of them)", err, listSchemas(all))
	case len(with) == 0:
		return fmt.Errorf("%w (there are no sagas in any of %s)", err, listSchemas(all))
	case slices.ContainsFunc(with, func(s migrations.Schema) bool { return s.Name == *c.schema }):
		return err
	default:
		return fmt.Errorf("%w (say which schema with -schema: there are sagas in %s)", err, listSchemas(with))
	}
}

// listSchemas names all, or as many as there is room for.
func listSchemas(all []migrations.Schema) string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return clip(strings.Join(names, ", "), 10*reasonWidth)
}

// hasSagas reports whether there is an instance in s, ended ones included: every service
// has the tables. What may not be read has none for whoever asks.
func hasSagas(ctx context.Context, db *pgxpool.Pool, s *migrations.Schema) bool {
	if !s.Sagas || len(s.SagasDenied) > 0 {
		return false
	}
	n, err := saga.NewInstances(db, &saga.InstancesOptions{Schema: s.Name})
	if err != nil {
		return false
	}
	some, err := n.List(ctx, saga.Filter{}, saga.Address{}, 1)
	return err == nil && len(some) > 0
}

// parse reads the command line, on which nothing but flags may be.
func (c *call) parse() error {
	err := c.flags.Parse(c.args)
	if errors.Is(err, flag.ErrHelp) {
		c.help()
	}
	if err == nil && c.flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag", c.flags.Arg(0))
	}
	return cmp.Or(err, c.environment)
}

// parseDatabase is parse where a database must be named.
func (c *call) parseDatabase() error {
	if err := c.parse(); err != nil {
		return err
	}
	if *c.database == "" {
		return errors.New("no database: give -database or set DATABASE_URL")
	}
	// What is no URL at all is an error of whoever opens it.
	if err := plaintext.Database(*c.database); errors.Is(err, plaintext.ErrRefused) && !*c.allowPlaintext {
		return fmt.Errorf("-database, or DATABASE_URL without it: %w", err)
	}
	return nil
}

func (c *call) help() {
	fmt.Fprintf(c.stdout, "sagamill %s: %s\n\n", c.command.words, c.command.about)
	width := 0
	c.flags.VisitAll(func(f *flag.Flag) { width = max(width, len(f.Name)) })
	c.flags.VisitAll(func(f *flag.Flag) {
		if c.command.offline() && (f.Name == "schema" || f.Name == "database") {
			return
		}
		fmt.Fprintf(c.stdout, "  -%-*s %s\n", width, f.Name, f.Usage)
	})
}

// open returns a pool on the database, which the caller closes. It connects when
// it is first used. The error does not quote the URL, which may have a password.
func (c *call) open(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(*c.database)
	if err != nil {
		return nil, errors.New("-database, or DATABASE_URL without it, is not a PostgreSQL URL or connection string")
	}
	config.MaxConns = maxConns
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.RuntimeParams["application_name"] = "sagamill"
	return pgxpool.NewWithConfig(ctx, config)
}
