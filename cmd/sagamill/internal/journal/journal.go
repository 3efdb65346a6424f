// Package journal has the command that lists what operators have done.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "journal", About: "who has redriven, edited, discarded, released or replayed what, and why; the newest first (decisions about sagas: saga show)", Run: readJournal}}
}

func readJournal(ctx context.Context, c *cli.Call) error {
	var since time.Time
	c.Flags.TextVar(&since, "since", time.Time{}, "since then, such as 2026-01-31T12:00:00Z; default: all")
	before := c.Flags.Int64("before", 0, "below this id, to go on; default: from the newest")
	limit := c.Flags.Int("limit", cli.DefaultLimit, fmt.Sprintf("print so many, at most %d; default: %d", operator.MaxList, cli.DefaultLimit))
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each, with the ids of all messages")
	if err := c.ParseDatabaseFlags(); err != nil {
		return err
	}
	switch {
	case *limit < 1 || *limit > operator.MaxList:
		return fmt.Errorf("-limit must be between 1 and %d", operator.MaxList)
	case *before < 0:
		return errors.New("-before must not be negative")
	}
	db, err := c.OpenDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	entries, err := operator.ReadJournal(ctx, db, &operator.Options{Schema: *c.Schema}, since, *before, *limit)
	if err != nil {
		return err
	}
	if err := printJournal(c, entries, *asJSON); err != nil {
		return err
	}
	if len(entries) == *limit {
		fmt.Fprintf(c.Stderr, "there may be more: -before %d\n", entries[len(entries)-1].ID)
	}
	return nil
}

// printJournal prints a table, or a line of JSON each.
func printJournal(c *cli.Call, entries []operator.JournalEntry, asJSON bool) error {
	if asJSON {
		for _, e := range entries {
			if err := cli.PrintJSON(c.Stdout, newEntry(e)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(entries))
	for i, e := range entries {
		rows[i] = []string{
			strconv.FormatInt(e.ID, 10), cli.FormatTime(e.At), cli.FormatCell(e.By), cli.FormatCell(e.DBUser), e.Verb, strconv.Itoa(len(e.IDs)), cli.FormatCell(formatIDRange(e.IDs)),
			cli.FormatCell(cli.ClipText(string(e.What), cli.ReasonWidth)), cli.FormatCell(cli.ClipText(e.Why, cli.ReasonWidth)),
		}
	}
	return cli.PrintTable(c.Stdout, []string{"ID", "AT", "BY", "LOGIN", "VERB", "COUNT", "IDS", "PICKED", "WHY"}, rows)
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

func newEntry(e operator.JournalEntry) Entry {
	return Entry{e.ID, cli.FormatTime(e.At), e.By, e.DBUser, e.Verb, len(e.IDs), e.IDs, e.What, e.Why}
}
