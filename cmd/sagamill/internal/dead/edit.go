package dead

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/outbox"
)

// An edit is the command line of dead edit.
type edit struct {
	operator.Edit
	who              *operator.Options
	ids              []int64
	file             string
	force, dry, show bool
	asJSON           bool
}

func deadEdit(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	e, err := parseEdit(c)
	if err != nil {
		return err
	}
	return c.ForEachLetters(ctx, operator.Inbox, *e.who, e.ids, e.asJSON, func(ctx context.Context, t *cli.Target, d *operator.DeadLetters, _ []int64) error {
		was, is, err := e.editLetter(ctx, d)
		if err != nil {
			return fmt.Errorf("%d: %w", e.ids[0], err)
		}
		if e.asJSON {
			if !e.show {
				is.Payload = nil
			}
			return cli.PrintJSON(c.Stdout, newLetter(t, is))
		}
		if err := printDifference(c.Stdout, was, is, e.show); err != nil {
			return err
		}
		return reportEdit(c, t, is.ID, e.dry)
	})
}

// editLetter edits the letter, or only says what it would be.
func (e *edit) editLetter(ctx context.Context, d *operator.DeadLetters) (was, is operator.DeadLetter, err error) {
	if !e.dry {
		return d.Edit(ctx, e.ids[0], e.Edit)
	}
	if was, err = d.Get(ctx, e.ids[0]); err == nil && was.State != operator.StateDead {
		err = operator.ErrNoDeadLetter
	}
	if err == nil {
		is, err = e.Apply(was, time.Now())
	}
	return was, is, err
}

// reportEdit prints that the letter was edited, and the command that redrives it. An edit alone
// redrives nothing.
func reportEdit(c *cli.Call, t *cli.Target, id int64, dry bool) error {
	if dry {
		_, err := fmt.Fprintln(c.Stdout, "would edit 1 dead letter; nothing is changed")
		return err
	}
	flags := t.Flags
	if t.Name == migrations.DefaultSchema {
		flags = ""
	}
	_, err := fmt.Fprintf(c.Stdout, "edited 1 dead letter; redrive it with sagamill dead redrive%s -id %d\n", flags, id)
	return err
}

func parseEdit(c *cli.Call) (*edit, error) {
	e := &edit{}
	e.Set = map[string]string{}
	c.Flags.Var((*cli.IDList)(&e.ids), "id", "id of the dead letter")
	c.Flags.StringVar(&e.file, "payload", "", "read the new payload from this file; - means standard input")
	c.Flags.Func("header", "set this header, as name=value; repeat the flag for several headers", func(s string) error {
		name, value, found := strings.Cut(s, "=")
		if !found {
			return errors.New("it must be name=value")
		}
		e.Set[name] = value
		return nil
	})
	c.Flags.Func("remove-header", "remove this header; repeat the flag for several headers", func(s string) error {
		e.Remove = append(e.Remove, s)
		return nil
	})
	e.who = c.AddOperatorFlags()
	c.Flags.BoolVar(&e.force, "force", false, "accept also a payload that is not JSON")
	c.Flags.BoolVar(&e.show, "show", false, "print the payloads in full")
	c.Flags.BoolVar(&e.dry, "n", false, "print what the command would change, and change nothing")
	c.Flags.BoolVar(&e.dry, "dry-run", false, "the same as -n")
	c.Flags.BoolVar(&e.asJSON, "json", false, "print the edited dead letter as JSON")
	if err := c.ParseDatabaseFlags(); err != nil {
		return nil, err
	}
	e.By = e.who.By
	if len(e.ids) != 1 {
		return nil, errors.New("say which one with -id")
	}
	return e, e.readPayload(c.Stdin)
}

// readPayload reads the payload, up to the size limit of messages. It returns an error if the payload
// is not JSON, unless -force is given.
func (e *edit) readPayload(stdin io.Reader) error {
	if e.file == "" {
		return nil
	}
	from := stdin
	if e.file != "-" {
		file, err := os.Open(e.file)
		if err != nil && (json.Valid([]byte(e.file)) || strings.ContainsAny(e.file, `{"`)) { // the error does not quote it, as it may be secret
			return errors.New("-payload takes the name of a file, or - for standard input, and not the payload itself")
		}
		if err != nil {
			return err
		}
		defer file.Close()
		from = file
	}
	payload, err := io.ReadAll(io.LimitReader(from, outbox.MaxPayload+1))
	if err != nil {
		return fmt.Errorf("read the payload: %w", err)
	}
	if !e.force && !json.Valid(payload) {
		return errors.New("the payload is not JSON: -force takes it all the same")
	}
	e.Payload = append([]byte{}, payload...)
	return nil
}

// printDifference prints the difference between two states of a letter, as diff does. Unless show is
// true, it prints only size and digest of the payloads.
func printDifference(w io.Writer, was, is operator.DeadLetter, show bool) error {
	var lines []string
	names := slices.Sorted(maps.Keys(was.Headers))
	names = append(names, slices.Sorted(maps.Keys(is.Headers))...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		old, had := was.Headers[name]
		now, has := is.Headers[name]
		if had && (!has || old != now) {
			lines = append(lines, "- header "+cli.FormatCell(name)+" = "+cli.FormatCell(old))
		}
		if has && (!had || old != now) {
			lines = append(lines, "+ header "+cli.FormatCell(name)+" = "+cli.FormatCell(now))
		}
	}
	if string(was.Payload) != string(is.Payload) {
		lines = append(lines, "- payload "+formatPayload(was.Payload, show), "+ payload "+formatPayload(is.Payload, show))
	}
	_, err := fmt.Fprintf(w, "letter %d\n%s\n", is.ID, strings.Join(lines, "\n"))
	return err
}

func formatPayload(payload []byte, show bool) string {
	if show {
		return strconv.Quote(string(payload))
	}
	return fmt.Sprintf("%d bytes, SHA-256 %x", len(payload), sha256.Sum256(payload))
}
