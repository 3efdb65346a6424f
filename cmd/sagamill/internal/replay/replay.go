// Package replay has the command that publishes stored messages again.
package replay

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
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/operator"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "replay", About: "publish once more the messages of the saga with -key, or all written since -since; -schema may name several services", Run: replayMessages}}
}

// A storedMessage is a message in the outbox of a schema.
type storedMessage struct {
	schema string
	operator.LoggedMessage
}

func replayMessages(ctx context.Context, c *cli.Call) error {
	what, err := parseReplay(c)
	if err != nil {
		return err
	}
	db, err := c.OpenDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	if what.filter.Key == "" {
		return replayRange(ctx, c, db, what)
	}
	return replaySaga(ctx, c, db, what)
}

// replaySaga replays the messages of a saga, in one transaction.
func replaySaga(ctx context.Context, c *cli.Call, db *pgxpool.Pool, what *replayCall) error {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	var kept []storedMessage
	var without []error
	err := beginLimited(ctx, db, func(tx pgx.Tx) (err error) {
		kept, without, err = replaySchemas(ctx, c, db, tx, what)
		return err
	})
	if err != nil {
		return err
	}
	var none error
	if n := len(without) - 1; len(kept) == 0 && n >= 0 { // the last error is returned, the others are printed
		without, none = without[:n], cli.SuggestKey(what.filter.Key, without[n])
	}
	for _, err := range without {
		fmt.Fprintln(c.Stderr, cli.EscapeText(err.Error()))
	}
	if none != nil {
		return none
	}
	if err := printMessages(c, kept, what.asJSON); err != nil {
		return err
	}
	return c.PrintCount(what.describeDone(), "messages", len(kept), what.asJSON)
}

// beginLimited runs do in a transaction that the server ends after 10 s without a statement. A
// suspended process would otherwise keep the relay from emptying the log's partitions.
func beginLimited(ctx context.Context, db *pgxpool.Pool, do func(pgx.Tx) error) error {
	const begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '10s'"
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: begin}, do)
}

// A replayCall is the command line of a replay.
type replayCall struct {
	*cli.Consent
	who    *operator.Options
	filter operator.ReplayFilter
	asJSON bool
	rate   *float64
	after  positions
}

// buildOptions are the options of the replay in schema.
func (r *replayCall) buildOptions(schema string) *operator.Options {
	return &operator.Options{Schema: schema, By: r.who.By, Why: r.who.Why}
}

func (r *replayCall) describeDone() string {
	if r.Dry {
		return "would replay"
	}
	return "replayed"
}

func parseReplay(c *cli.Call) (*replayCall, error) {
	r := &replayCall{Consent: c.AddConsentFlags(), who: c.AddOperatorFlags(), rate: c.AddRateFlag(), after: positions{}}
	c.Flags.StringVar(&r.filter.Key, "key", "", "the idempotency key of the saga; default: all sagas, in batches")
	c.Flags.StringVar(&r.filter.Scope, "scope", "", "of this scope; needed where several have such a key")
	c.Flags.TextVar(&r.filter.Since, "since", time.Time{}, "written then or later, such as 2026-01-31T12:00:00Z")
	c.Flags.TextVar(&r.filter.Until, "until", time.Time{}, "written before")
	c.Flags.Var(r.after, "after", "without -key: go on behind these, SCHEMA:ID,…, as an interrupted replay says")
	c.Flags.BoolVar(&r.asJSON, "json", false, "print JSON, a line each")
	if err := c.ParseDatabaseFlags(); err != nil {
		return nil, err
	}
	f := &r.filter
	switch {
	case f.Key == "" && f.Since.IsZero():
		return nil, errors.New("say which: a saga with -key, or a time range with -since")
	case !f.Until.IsZero() && !f.Since.Before(f.Until):
		return nil, fmt.Errorf("-since %s is not before -until %s", cli.FormatTime(f.Since), cli.FormatTime(f.Until))
	case f.Key != "" && c.IsGiven([]string{"rate", "after"}):
		return nil, errors.New("-rate and -after are for a time range, without -key")
	case *r.rate < 0:
		return nil, errors.New("-rate must not be negative")
	}
	for schema := range r.after {
		if !slices.Contains(schemaNames(c), schema) {
			return nil, fmt.Errorf("-after names %s, which -schema does not", cli.FormatCell(schema))
		}
	}
	if err := c.CheckFilled([]string{"scope"}); err != nil {
		return nil, err
	}
	return r, r.Consent.DecideChange(f.Key == "")
}

// schemaNames returns the schemas that -schema lists.
func schemaNames(c *cli.Call) []string {
	names := strings.Split(*c.Schema, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// replaySchemas replays the messages of a saga in each schema. without has an error for each schema
// without such messages. It returns an error if the key is used in several scopes.
func replaySchemas(ctx context.Context, c *cli.Call, db *pgxpool.Pool, tx pgx.Tx, what *replayCall) (all []storedMessage, without []error, err error) {
	var scopes []string
	for _, schema := range schemaNames(c) {
		r, err := operator.NewReplayer(db, what.buildOptions(schema))
		if err != nil {
			return nil, nil, err
		}
		do := r.Replay
		if what.Dry {
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
			all = append(all, storedMessage{schema, k})
			scopes = append(scopes, cli.FormatCell(k.Scope))
		}
	}
	slices.Sort(scopes)
	if scopes = slices.Compact(scopes); len(scopes) > 1 {
		return nil, nil, fmt.Errorf("the key is used in several scopes: say which with -scope: %s", cli.ClipText(strings.Join(scopes, " "), 10*cli.ReasonWidth))
	}
	return all, without, nil
}

func printMessages(c *cli.Call, kept []storedMessage, asJSON bool) error {
	if asJSON {
		return printMessagesJSON(c, kept)
	}
	rows := make([][]string, len(kept))
	for i, k := range kept {
		step := k.Step
		if k.N != "" {
			step += "#" + k.N
		}
		rows[i] = []string{k.schema, strconv.FormatInt(k.ID, 10), k.MessageID, cli.FormatCell(k.Topic), cli.FormatCell(k.Type), cli.FormatCell(k.Scope), cli.FormatCell(k.Key), cli.FormatCell(step), cli.FormatTime(k.CreatedAt), strconv.Itoa(k.Size)}
	}
	return cli.PrintTable(c.Stdout, []string{"SCHEMA", "ID", "MESSAGE", "TOPIC", "TYPE", "SCOPE", "KEY", "STEP", "WRITTEN", "BYTES"}, rows)
}

func printMessagesJSON(c *cli.Call, kept []storedMessage) error {
	for _, k := range kept {
		if err := cli.PrintJSON(c.Stdout, newMessage(k)); err != nil {
			return err
		}
	}
	return nil
}

// A Message is a replayed message as JSON.
type Message struct {
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

func newMessage(k storedMessage) Message {
	return Message{k.schema, k.ID, k.MessageID, k.Topic, k.Type, k.Scope, k.Key, k.Step, k.N, cli.FormatTime(k.CreatedAt), k.Size}
}
