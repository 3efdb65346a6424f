package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/operator"
)

func journalCommands() []command {
	return []command{{"journal", "who has redriven, edited, discarded, released or replayed what, and why; the newest first (decisions about sagas: saga show)", readJournal}}
}

// defaultRate is how many messages a second are sent out once more, unless -rate says
// otherwise: what consumers have to do besides their work.
const defaultRate = 500

// sayRate adds the flag -rate to c. 0 is as many as go, as it is in [operator.RangeOptions].
func (c *call) sayRate() *float64 {
	return c.flags.Float64("rate", defaultRate, fmt.Sprintf("so many in a second, 0: as many as go; default: %d", defaultRate))
}

// sayWho adds the flags to c for who does it, and why.
func (c *call) sayWho() *operator.Options {
	o := &operator.Options{}
	c.flags.StringVar(&o.By, "by", userName(), "who does it; default: the user who runs this")
	c.flags.StringVar(&o.Why, "why", "", "why; sagamill journal shows it to others")
	return o
}

// A consent is whether something is done, or only told.
type consent struct {
	dry, yes bool
	asked    bool // there are many, and nobody has said -yes or -n
}

// sayWhether adds the flags of a consent to c.
func (c *call) sayWhether() *consent {
	k := &consent{}
	c.flags.BoolVar(&k.yes, "yes", false, "do it to all that is picked; without it, where messages are not named one by one, only say what would be done")
	c.flags.BoolVar(&k.dry, "n", false, "say what would be done, and do nothing")
	c.flags.BoolVar(&k.dry, "dry-run", false, "as -n")
	return k
}

// check settles whether it is done. What many messages are picked for is, with -yes.
func (k *consent) check(many bool) error {
	if k.dry && k.yes {
		return errors.New("say -n or -yes, and not both")
	}
	k.asked = many && !k.dry && !k.yes
	k.dry = k.dry || k.asked
	return nil
}

// told is err, with which what would be done was told, or that it has to be said again.
// That is an error: a script that does not say -yes is to notice.
func (k *consent) told(err error) error {
	if err == nil && k.asked {
		err = errors.New("nothing is done yet: the same with -yes does it")
	}
	return err
}

func readJournal(ctx context.Context, c *call) error {
	var since time.Time
	c.flags.TextVar(&since, "since", time.Time{}, "since then, such as 2026-01-31T12:00:00Z; default: all")
	before := c.flags.Int64("before", 0, "below this id, to go on; default: from the newest")
	limit := c.flags.Int("limit", defaultLimit, fmt.Sprintf("print so many, at most %d; default: %d", operator.MaxList, defaultLimit))
	asJSON := c.flags.Bool("json", false, "print JSON, a line each, with the ids of all messages")
	if err := c.parseDatabase(); err != nil {
		return err
	}
	switch {
	case *limit < 1 || *limit > operator.MaxList:
		return fmt.Errorf("-limit must be between 1 and %d", operator.MaxList)
	case *before < 0:
		return errors.New("-before must not be negative")
	}
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	entries, err := operator.ReadJournal(ctx, db, &operator.Options{Schema: *c.schema}, since, *before, *limit)
	if err != nil {
		return err
	}
	if err := printJournal(c, entries, *asJSON); err != nil {
		return err
	}
	if len(entries) == *limit {
		fmt.Fprintf(c.stderr, "there may be more: -before %d\n", entries[len(entries)-1].ID)
	}
	return nil
}

// printJournal prints a table, or a line of JSON each.
func printJournal(c *call, entries []operator.JournalEntry, asJSON bool) error {
	if asJSON {
		for _, e := range entries {
			if err := printJSON(c.stdout, newEntry(e)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, len(entries))
	for i, e := range entries {
		rows[i] = []string{
			strconv.FormatInt(e.ID, 10), stamp(e.At), cell(e.By), cell(e.DBUser), e.Verb, strconv.Itoa(len(e.IDs)), cell(idsText(e.IDs)),
			cell(clip(string(e.What), reasonWidth)), cell(clip(e.Why, reasonWidth)),
		}
	}
	return printTable(c.stdout, []string{"ID", "AT", "BY", "LOGIN", "VERB", "COUNT", "IDS", "PICKED", "WHY"}, rows)
}

// idsText says which they are if they are few, and else the first and the last.
func idsText(ids []int64) string {
	if len(ids) > 5 {
		return fmt.Sprintf("%d…%d", ids[0], ids[len(ids)-1])
	}
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(parts, ",")
}

// An entry is a row of the journal as JSON.
type entry struct {
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

func newEntry(e operator.JournalEntry) entry {
	return entry{e.ID, stamp(e.At), e.By, e.DBUser, e.Verb, len(e.IDs), e.IDs, e.What, e.Why}
}
