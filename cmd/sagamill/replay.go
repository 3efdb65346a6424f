package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

func replayCommands() []command {
	return []command{{"replay", "publish the messages of the saga with -key once more; -schema may name several services", replay}}
}

// A keptMessage is one of a schema.
type keptMessage struct {
	schema string
	outbox.Kept
}

func replay(ctx context.Context, c *call) error {
	filter, dry, asJSON, err := c.parseReplay()
	if err != nil {
		return err
	}
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var kept []keptMessage
	var without []error
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		kept, without, err = c.replaySchemas(ctx, tx, filter, dry)
		return err
	})
	if err != nil {
		return err
	}
	var none error
	if n := len(without) - 1; len(kept) == 0 && n >= 0 { // the last is the error, so that each has a line
		without, none = without[:n], withoutStep(filter.Key, without[n])
	}
	for _, err := range without {
		fmt.Fprintln(c.stderr, visible(err.Error()))
	}
	if none != nil {
		return none
	}
	if err := printKept(c, kept, asJSON); err != nil {
		return err
	}
	did := "replayed"
	if dry {
		did = "would replay"
	}
	return c.report(did, "messages", len(kept), asJSON)
}

// withoutStep adds to err, that nothing is kept, that key looks like one with a step,
// which is what messages have in their header. It may be none: a key may have colons.
func withoutStep(key string, err error) error {
	k, parseErr := stepkey.Parse(key)
	if parseErr != nil {
		return err
	}
	return fmt.Errorf("%w; the key is without the step: is it -key %s?", err, k.Key)
}

func (c *call) parseReplay() (filter outbox.ReplayFilter, dry, asJSON bool, err error) {
	c.flags.StringVar(&filter.Key, "key", "", "the idempotency key of the saga")
	c.flags.StringVar(&filter.Scope, "scope", "", "of this scope; needed where several have such a key")
	c.flags.TextVar(&filter.Since, "since", time.Time{}, "written then or later, such as 2026-01-31T12:00:00Z")
	c.flags.TextVar(&filter.Until, "until", time.Time{}, "written before")
	c.flags.BoolVar(&dry, "n", false, "say what would be done, and do nothing")
	c.flags.BoolVar(&dry, "dry-run", false, "as -n")
	c.flags.BoolVar(&asJSON, "json", false, "print JSON, a line each")
	if err := c.parseDatabase(); err != nil {
		return filter, false, false, err
	}
	if filter.Key == "" {
		return filter, false, false, errors.New("say which saga with -key")
	}
	return filter, dry, asJSON, c.checkFilled([]string{"scope"})
}

// replaySchemas replays what each schema keeps, and says which keep nothing. It
// stops where that would be more than one saga.
func (c *call) replaySchemas(ctx context.Context, tx pgx.Tx, filter outbox.ReplayFilter, dry bool) (all []keptMessage, without []error, err error) {
	var scopes []string
	for schema := range strings.SplitSeq(*c.schema, ",") {
		r, err := outbox.NewReplayer(strings.TrimSpace(schema))
		if err != nil {
			return nil, nil, err
		}
		do := r.Replay
		if dry {
			do = r.List
		}
		kept, err := do(ctx, tx, filter)
		switch {
		case errors.Is(err, outbox.ErrNotKept):
			without = append(without, err)
		case err != nil:
			return nil, nil, err
		}
		for _, k := range kept {
			all = append(all, keptMessage{strings.TrimSpace(schema), k})
			scopes = append(scopes, cell(k.Scope))
		}
	}
	slices.Sort(scopes)
	if scopes = slices.Compact(scopes); len(scopes) > 1 {
		return nil, nil, fmt.Errorf("the key is used in several scopes: say which with -scope: %s", clip(strings.Join(scopes, " "), 10*reasonWidth))
	}
	return all, without, nil
}

func printKept(c *call, kept []keptMessage, asJSON bool) error {
	rows := make([][]string, len(kept))
	for i, k := range kept {
		if asJSON {
			if err := printJSON(c.stdout, newKept(k)); err != nil {
				return err
			}
			continue
		}
		step := k.Step
		if k.N != "" {
			step += "#" + k.N
		}
		rows[i] = []string{k.schema, strconv.FormatInt(k.ID, 10), k.MessageID, cell(k.Topic), cell(k.Type), cell(k.Scope), cell(k.Key), cell(step), stamp(k.CreatedAt), strconv.Itoa(k.Size)}
	}
	if asJSON {
		return nil
	}
	return printTable(c.stdout, []string{"SCHEMA", "ID", "MESSAGE", "TOPIC", "TYPE", "SCOPE", "KEY", "STEP", "WRITTEN", "BYTES"}, rows)
}

// A keptJSON is a replayed message as JSON.
type keptJSON struct {
	Schema    string `json:"schema"`
	ID        int64  `json:"id"`
	MessageID string `json:"message_id"`
	Topic     string `json:"topic"`
	Type      string `json:"type"`
	Scope     string `json:"scope"`
	Key       string `json:"key"`
	Step      string `json:"step"`
	N         string `json:"n,omitempty"`
	CreatedAt string `json:"created_at"`
	Size      int    `json:"bytes"`
}

func newKept(k keptMessage) keptJSON {
	return keptJSON{k.schema, k.ID, k.MessageID, k.Topic, k.Type, k.Scope, k.Key, k.Step, k.N, stamp(k.CreatedAt), k.Size}
}
