// Package status has the command that shows all schemas on one page.
package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "status", About: "print the state and the problems of all schemas of sagamill in the databases", Run: showStatus}}
}

// A page is what the command shows.
type page struct {
	schemas []schema
	failed  []error // of databases that could not be read
}

// A schema is the status of a target.
type schema struct {
	*cli.Target
	operator.SchemaStatus
}

func showStatus(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.EverySchema)
	asJSON := c.Flags.Bool("json", false, "print JSON, one line for each schema")
	check := c.Flags.Bool("check", false, "exit with 1 if there are problems")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	names, err := c.NamedSchemas(cli.EverySchema)
	if err != nil {
		return err
	}
	databases, err := c.OpenDatabases(ctx)
	if err != nil {
		return err
	}
	p, err := readPage(ctx, databases, names)
	for _, d := range databases {
		d.Pool.Close()
	}
	if err != nil {
		return err
	}
	show := p.printText
	if *asJSON {
		show = p.printJSON
	}
	problems, err := show(c.Stdout)
	switch {
	case err != nil:
		return err
	case len(p.failed) > 0:
		return errors.Join(p.failed...)
	case *check && problems > 0:
		return fmt.Errorf("%s: run the command that the page names for each", cli.FormatCount(problems, "problems"))
	}
	return nil
}

// readPage reads the status of the schemas called names, or of all. A database that cannot be read does not hide the
// others: readPage returns an error only if none can be read, or if no database has one of the names.
func readPage(ctx context.Context, databases []*cli.Database, names []string) (*page, error) {
	p := &page{}
	missing := slices.Clone(names)
	for _, d := range databases {
		found, err := readDatabase(ctx, d, names)
		if err != nil {
			p.failed = append(p.failed, d.AddName(err))
			continue
		}
		for i := range found {
			s := schema{d.Target(found[i].Schema), found[i]}
			p.schemas = append(p.schemas, s)
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == s.Target.Schema })
		}
	}
	switch {
	case len(p.failed) == len(databases):
		return nil, errors.Join(p.failed...)
	case len(p.failed) > 0:
		return p, nil
	case len(missing) > 0:
		return nil, fmt.Errorf("no tables of sagamill in schema %s: has it been migrated?", strings.Join(missing, ", "))
	case len(p.schemas) == 0:
		return nil, errors.New("no schema with tables of sagamill: has it been migrated (sagamill migrate up)?")
	}
	return p, nil
}

func readDatabase(ctx context.Context, d *cli.Database, names []string) ([]operator.SchemaStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	if names == nil {
		return operator.ReadOverview(ctx, d.Pool, nil)
	}
	here, err := d.ListSchemas(ctx, names)
	if err != nil || len(here) == 0 {
		return nil, err
	}
	return operator.ReadOverview(ctx, d.Pool, &operator.OverviewOptions{Schemas: here})
}

// printText prints a block for each schema, and then a line for each problem. It returns the number of problems.
func (p *page) printText(w io.Writer) (problems int, err error) {
	for i := range p.schemas {
		if err := p.schemas[i].printBlock(w); err != nil {
			return 0, err
		}
	}
	var rows [][]string
	for i := range p.schemas {
		s := &p.schemas[i]
		for _, n := range s.Problems() {
			text, command := s.explainProblem(&n)
			rows = append(rows, []string{"  " + s.Name, cli.EscapeText(text), command})
		}
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "no problems"+p.describeRetries())
		return 0, err
	}
	fmt.Fprintln(w, "problems:")
	return len(rows), cli.PrintRows(w, rows)
}

// describeRetries says how many messages wait for their next attempt, which is no problem yet; "": none.
func (p *page) describeRetries() string {
	n, floor := 0, false
	for i := range p.schemas {
		if inbox := p.schemas[i].Inbox; inbox != nil {
			n, floor = n+inbox.Retrying, floor || inbox.Retrying+inbox.Calling >= outbox.CountLimit
		}
	}
	switch {
	case n == 0:
		return ""
	case floor:
		return fmt.Sprintf(" that need a person; at least %d retrying messages", n)
	case n == 1:
		return " that need a person; 1 retrying message"
	}
	return fmt.Sprintf(" that need a person; %d retrying messages", n)
}
