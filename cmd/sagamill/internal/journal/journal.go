// Package journal has the command that lists what operators have done.
package journal

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "journal", About: "list changes and replays of messages, and decisions about idempotency keys, newest first: who did what, and why; for decisions about a saga, use sagamill saga show", Run: readJournal}}
}

func readJournal(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	var since time.Time
	c.Flags.TextVar(&since, "since", time.Time{}, "list only entries since this time, such as 2026-01-31T12:00:00Z; default: all entries")
	before, limit := cli.Positions{}, c.AddLimitFlag()
	c.Flags.Var(before, "before", "print only entries whose ids are smaller than this id, to continue a list; with several schemas, write SCHEMA:ID,…; default: begin with the newest entry")
	asJSON := c.Flags.Bool("json", false, "print JSON, one object per line; each object is one entry of the journal, with the ids of all messages of this entry")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	if err := cli.CheckLimit(*limit); err != nil {
		return err
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	if err := before.Assign("before", targets); err != nil {
		return err
	}
	entries, err := mergeJournals(ctx, targets, since, before, *limit)
	if err != nil {
		return err
	}
	if err := printJournal(c, targets, entries, *asJSON); err != nil {
		return err
	}
	if len(entries) == *limit {
		for _, e := range entries {
			before[e.Name] = e.Entry.ID
		}
		if !targets.Several() {
			before = cli.Positions{"": before[targets.All[0].Name]}
		}
		fmt.Fprintf(c.Stderr, "there may be more: -before %s\n", before)
	}
	return nil
}

// mergeJournals reads the newest entries of all targets, the newest first.
func mergeJournals(ctx context.Context, targets *cli.Targets, since time.Time, before cli.Positions, limit int) (all []cli.Listed[operator.JournalEntry], err error) {
	err = targets.Each(ctx, func(ctx context.Context, t *cli.Target) error {
		entries, err := operator.ReadJournal(ctx, t.DB, &operator.Options{Schema: t.Schema}, since, before[t.Name], limit)
		all = append(all, cli.ListedIn(t, entries)...)
		return err
	})
	slices.SortStableFunc(all, func(a, b cli.Listed[operator.JournalEntry]) int { return b.Entry.At.Compare(a.Entry.At) })
	return all[:min(len(all), limit)], err
}

// printJournal prints a table, or a line of JSON each.
func printJournal(c *cli.Call, targets *cli.Targets, entries []cli.Listed[operator.JournalEntry], asJSON bool) error {
	if asJSON {
		for _, e := range entries {
			if err := cli.PrintJSON(c.Stdout, newEntry(e)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(entries))
	for i := range entries {
		e := entries[i].Entry
		rows[i] = []string{
			strconv.FormatInt(e.ID, 10), cli.FormatTime(e.At), cli.FormatCell(e.By), cli.FormatCell(e.DBUser), e.Verb, strconv.Itoa(len(e.IDs)), cli.FormatCell(formatIDRange(e.IDs)),
			cli.FormatCell(cli.ClipText(string(e.What), cli.ReasonWidth)), cli.FormatCell(cli.ClipText(e.Why, cli.ReasonWidth)),
		}
	}
	return targets.PrintListed(c, []string{"ID", "AT", "BY", "LOGIN", "VERB", "COUNT", "IDS", "PICKED", "WHY"}, cli.TargetsOf(entries), rows)
}

// formatIDRange lists a few ids, and of many ids returns the first and the last.
func formatIDRange(ids []int64) string {
	if len(ids) > 5 {
		return fmt.Sprintf("%d…%d", ids[0], ids[len(ids)-1])
	}
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(parts, ",")
}

// An Entry is a row of the journal as JSON.
type Entry struct {
	Schema string          `json:"schema"`
	ID     int64           `json:"id"`
	At     string          `json:"at"`
	By     string          `json:"by"`
	DBUser string          `json:"db_user"`
	Verb   string          `json:"verb"`
	Count  int             `json:"count"`
	IDs    []int64         `json:"ids"`
	What   json.RawMessage `json:"what"`
	Why    string          `json:"why,omitempty"`
}

func newEntry(l cli.Listed[operator.JournalEntry]) Entry {
	e := l.Entry
	return Entry{l.Name, e.ID, cli.FormatTime(e.At), e.By, e.DBUser, e.Verb, len(e.IDs), e.IDs, e.What, e.Why}
}
