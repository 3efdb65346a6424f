// Package why has the command that says where a saga is waiting.
package why

import (
	"context"
	"fmt"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "why", About: "print where the saga with the key KEY is waiting; the command looks at all services that have a schema in the database", Run: explainSaga}}
}

func explainSaga(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.EverySchema)
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line")
	at, err := c.ParseAddress(false, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	targets, err := c.OpenTargets(ctx, cli.EverySchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	sources := make([]operator.Source, len(targets.All))
	for i, t := range targets.All {
		sources[i] = operator.Source{DB: t.DB, Schema: t.Schema, Name: t.Name, Flags: t.Flags}
	}
	found, err := operator.Explain(ctx, sources, at, &operator.ExplainOptions{NeedsInbox: c.IsGiven([]string{"schema"}), Here: nameDatabases(targets)})
	if err != nil {
		return err
	}
	for _, f := range append(found.Findings, found.Unreadable...) {
		if err := printFinding(c, f, *asJSON); err != nil {
			return err
		}
	}
	if len(found.Findings) == 0 {
		return cli.SuggestKey(at.Key, fmt.Errorf("nothing is known of %s in %s (what came without a key that can be read is in sagamill dead list -kind unknown)", cli.FormatCell(at.Key), cli.FormatCount(len(found.Parts), "schemas")))
	}
	return nil
}

// nameDatabases names the databases that are looked at.
func nameDatabases(targets *cli.Targets) string {
	if len(targets.ByDatabase()) > 1 {
		return "these databases"
	}
	return "this database"
}

// printFinding prints the text of f, or f as JSON.
func printFinding(c *cli.Call, f operator.Finding, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, f)
	}
	_, err := fmt.Fprintln(c.Stdout, cli.EscapeText(f.Text))
	return err
}
