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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/operator"
)

func replayCommands() []command {
	return []command{{"replay", "publish once more the messages of the saga with -key, or all written since -since; -schema may name several services", replay}}
}

// A keptMessage is one of a schema.
type keptMessage struct {
	schema string
	operator.LoggedMessage
}

func replay(ctx context.Context, c *call) error {
	what, err := c.parseReplay()
	if err != nil {
		return err
	}
	db, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	if what.filter.Key == "" {
		return c.replayRange(ctx, db, what)
	}
	return c.replaySaga(ctx, db, what)
}

// replaySaga replays the messages of a saga, in one transaction.
func (c *call) replaySaga(ctx context.Context, db *pgxpool.Pool, what *replayCall) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var kept []keptMessage
	var without []error
	err := beginLimited(ctx, db, func(tx pgx.Tx) (err error) {
		kept, without, err = c.replaySchemas(ctx, db, tx, what)
		return err
	})
	if err != nil {
		return err
	}
	var none error
	if n := len(without) - 1; len(kept) == 0 && n >= 0 { // the last is the error, so that each has a line
		without, none = without[:n], withoutStep(what.filter.Key, without[n])
	}
	for _, err := range without {
		fmt.Fprintln(c.stderr, visible(err.Error()))
	}
	if none != nil {
		return none
	}
	if err := printKept(c, kept, what.asJSON); err != nil {
		return err
	}
	return c.report(what.did(), "messages", len(kept), what.asJSON)
}

// beginLimited runs do in a transaction that the server ends if nothing happens in it: a
// process that was stopped would keep the log's leaves from being emptied.
func beginLimited(ctx context.Context, db *pgxpool.Pool, do func(pgx.Tx) error) error {
	const begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '10s'"
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: begin}, do)
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

// A replayCall is the command line of a replay.
type replayCall struct {
	*consent
	who    *operator.Options
	filter operator.ReplayFilter
	asJSON bool
	rate   *float64
	after  positions
}

// in are the options of the replay in schema.
func (r *replayCall) in(schema string) *operator.Options {
	return &operator.Options{Schema: schema, By: r.who.By, Why: r.who.Why}
}

func (r *replayCall) did() string {
	if r.dry {
		return "would replay"
	}
	return "replayed"
}

func (c *call) parseReplay() (*replayCall, error) {
	r := &replayCall{consent: c.sayWhether(), who: c.sayWho(), rate: c.sayRate(), after: positions{}}
	c.flags.StringVar(&r.filter.Key, "key", "", "the idempotency key of the saga; default: all sagas, in batches")
	c.flags.StringVar(&r.filter.Scope, "scope", "", "of this scope; needed where several have such a key")
	c.flags.TextVar(&r.filter.Since, "since", time.Time{}, "written then or later, such as 2026-01-31T12:00:00Z")
	c.flags.TextVar(&r.filter.Until, "until", time.Time{}, "written before")
	c.flags.Var(r.after, "after", "without -key: go on behind these, SCHEMA:ID,…, as an interrupted replay says")
	c.flags.BoolVar(&r.asJSON, "json", false, "print JSON, a line each")
	if err := c.parseDatabase(); err != nil {
		return nil, err
	}
	f := &r.filter
	switch {
	case f.Key == "" && f.Since.IsZero():
		return nil, errors.New("say which: a saga with -key, or a time range with -since")
	case !f.Until.IsZero() && !f.Since.Before(f.Until):
		return nil, fmt.Errorf("-since %s is not before -until %s", stamp(f.Since), stamp(f.Until))
	case f.Key != "" && c.given([]string{"rate", "after"}):
		return nil, errors.New("-rate and -after are for a time range, without -key")
	case *r.rate < 0:
		return nil, errors.New("-rate must not be negative")
	}
	for schema := range r.after {
		if !slices.Contains(c.schemaNames(), schema) {
			return nil, fmt.Errorf("-after names %s, which -schema does not", cell(schema))
		}
	}
	if err := c.checkFilled([]string{"scope"}); err != nil {
		return nil, err
	}
	return r, r.consent.check(f.Key == "")
}

// schemaNames returns those of -schema.
func (c *call) schemaNames() []string {
	names := strings.Split(*c.schema, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// replaySchemas replays what each schema keeps, and says which keep nothing. It
// stops where that would be more than one saga.
func (c *call) replaySchemas(ctx context.Context, db *pgxpool.Pool, tx pgx.Tx, what *replayCall) (all []keptMessage, without []error, err error) {
	var scopes []string
	for _, schema := range c.schemaNames() {
		r, err := operator.NewReplayer(db, what.in(schema))
		if err != nil {
			return nil, nil, err
		}
		do := r.Replay
		if what.dry {
			do = r.List
		}
		kept, err := do(ctx, tx, what.filter)
		switch {
		case errors.Is(err, operator.ErrNotKept):
			without = append(without, err)
		case err != nil:
			return nil, nil, err
		}
		for _, k := range kept {
			all = append(all, keptMessage{schema, k})
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
	if asJSON {
		return printKeptJSON(c, kept)
	}
	rows := make([][]string, len(kept))
	for i, k := range kept {
		step := k.Step
		if k.N != "" {
			step += "#" + k.N
		}
		rows[i] = []string{k.schema, strconv.FormatInt(k.ID, 10), k.MessageID, cell(k.Topic), cell(k.Type), cell(k.Scope), cell(k.Key), cell(step), stamp(k.CreatedAt), strconv.Itoa(k.Size)}
	}
	return printTable(c.stdout, []string{"SCHEMA", "ID", "MESSAGE", "TOPIC", "TYPE", "SCOPE", "KEY", "STEP", "WRITTEN", "BYTES"}, rows)
}

func printKeptJSON(c *call, kept []keptMessage) error {
	for _, k := range kept {
		if err := printJSON(c.stdout, newKept(k)); err != nil {
			return err
		}
	}
	return nil
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
