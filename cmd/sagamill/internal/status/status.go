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
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "status", About: "how all schemas are, of all databases given, and what needs a person; with -check its exit code says so", Run: showStatus}}
}

// A page is what the command shows.
type page struct {
	schemas []schema
	silent  []error // of databases that could not be read
}

// A schema is the status of a target.
type schema struct {
	*cli.Target
	operator.SchemaStatus
}

func showStatus(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.EverySchema)
	asJSON := c.Flags.Bool("json", false, "print JSON, a line for each schema")
	check := c.Flags.Bool("check", false, "exit with 1 if something needs a person")
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
	show := p.print
	if *asJSON {
		show = p.printJSON
	}
	needs, err := show(c.Stdout)
	switch {
	case err != nil:
		return err
	case len(p.silent) > 0:
		return errors.Join(p.silent...)
	case *check && needs > 0:
		return fmt.Errorf("%s of what needs a person", cli.FormatCount(needs, "kinds"))
	}
	return nil
}

// readPage reads the status of the schemas called names, or of all. One database that cannot be read does not hide
// another one; the error is that of the only one, or names a schema that none has.
func readPage(ctx context.Context, databases []*cli.Database, names []string) (*page, error) {
	p := &page{}
	missing := slices.Clone(names)
	for _, d := range databases {
		found, err := readDatabase(ctx, d, names)
		if err != nil {
			p.silent = append(p.silent, d.AddName(err))
			continue
		}
		for i := range found {
			s := schema{d.Target(found[i].Schema), found[i]}
			p.schemas = append(p.schemas, s)
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == s.Target.Schema })
		}
	}
	switch {
	case len(p.silent) == len(databases):
		return nil, errors.Join(p.silent...)
	case len(p.silent) > 0:
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
		return operator.ReadOverview(ctx, d.Pool)
	}
	here, err := d.ListSchemas(ctx, names)
	if err != nil || len(here) == 0 {
		return nil, err
	}
	return operator.ReadOverview(ctx, d.Pool, here...)
}

// print prints a block for each schema, and then what needs a person. It returns how many kinds of that there are.
func (p *page) print(w io.Writer) (needs int, err error) {
	for i := range p.schemas {
		if err := p.schemas[i].print(w); err != nil {
			return 0, err
		}
	}
	var rows [][]string
	for i := range p.schemas {
		s := &p.schemas[i]
		for _, n := range s.Needs() {
			text, command := s.explainNeed(&n)
			rows = append(rows, []string{"  " + s.Name, cli.EscapeText(text), command})
		}
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "nothing needs a person")
		return 0, err
	}
	fmt.Fprintln(w, "needs a person:")
	return len(rows), cli.PrintRows(w, rows)
}
