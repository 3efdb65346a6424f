// Package replay has the command that publishes stored messages again.
package replay

import (
	"cmp"
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
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/operator"
)

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "replay", About: "publish stored messages again: with -key, the messages of one saga; with -since, all messages that were written at the given time or later", Run: replayMessages}}
}

// A storedMessage is a message in the outbox of a schema.
type storedMessage struct {
	schema string
	operator.LoggedMessage
}

func replayMessages(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.DefaultSchema)
	what, err := parseReplay(c)
	if err != nil {
		return err
	}
	targets, err := c.OpenTargets(ctx, cli.DefaultSchema)
	if err != nil {
		return err
	}
	defer targets.Close()
	if err := what.after.Assign("after", targets); err != nil {
		return err
	}
	if what.filter.Key == "" {
		return replayRange(ctx, c, targets, what)
	}
	return replaySaga(ctx, c, targets, what)
}

// replaySaga replays the messages of a saga, in one transaction for each database. In several databases it first looks
// for a key of several scopes, because it could not take back what it has replayed in another one.
func replaySaga(ctx context.Context, c *cli.Call, targets *cli.Targets, what *replayCall) error {
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	databases := targets.ByDatabase()
	if len(databases) > 1 && !what.Dry {
		if _, _, err := replayDatabases(ctx, databases, what, true); err != nil {
			return err
		}
	}
	kept, without, err := replayDatabases(ctx, databases, what, what.Dry)
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
	return c.PrintCount("", what.describeDone(), "messages", len(kept), what.asJSON)
}

// replayDatabases replays the messages of a saga in each database, or lists them. without has an error for each schema
// without such messages.
func replayDatabases(ctx context.Context, databases [][]*cli.Target, what *replayCall, dry bool) (kept []storedMessage, without []error, err error) {
	for _, targets := range databases {
		err := beginLimited(ctx, targets[0].DB, func(tx pgx.Tx) error {
			found, lack, err := replaySchemas(ctx, targets, tx, what, dry)
			kept, without = append(kept, found...), append(without, lack...)
			return cmp.Or(err, checkScopes(kept))
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return kept, without, nil
}

// beginLimited runs do in a transaction that the server ends after 10 s without a statement. A
// suspended process would otherwise keep the relay from emptying the log's partitions.
func beginLimited(ctx context.Context, db *pgxpool.Pool, do func(pgx.Tx) error) error {
	const begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '10s'"
	return pg.NewOwn(db).InTx(ctx, pgx.TxOptions{BeginQuery: begin}, do)
}

// A replayCall is the command line of a replay.
type replayCall struct {
	*cli.Consent
	who    *operator.Options
	filter operator.ReplayFilter
	asJSON bool
	rate   *float64
	after  cli.Positions
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
	r := &replayCall{Consent: c.AddConsentFlags(), who: c.AddOperatorFlags(), rate: c.AddRateFlag("messages"), after: cli.Positions{}}
	c.Flags.StringVar(&r.filter.Key, "key", "", "the idempotency key of the saga; default: replay, in batches, all messages that were written from -since to -until")
	c.Flags.StringVar(&r.filter.Scope, "scope", "", "scope of the key; required if several scopes have this key")
	c.Flags.TextVar(&r.filter.Since, "since", time.Time{}, "only messages that were written at this time or later, such as 2026-01-31T12:00:00Z")
	c.Flags.TextVar(&r.filter.Until, "until", time.Time{}, "only messages that were written before this time")
	c.Flags.Var(r.after, "after", "continue an interrupted replay: copy the value SCHEMA:ID,… that the interrupted replay has printed; not allowed with -key")
	c.Flags.BoolVar(&r.asJSON, "json", false, "print JSON, one object per line")
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
	if err := c.CheckFilled([]string{"scope"}); err != nil {
		return nil, err
	}
	return r, r.Consent.DecideChange(f.Key == "")
}

// replaySchemas replays the messages of a saga in each schema of a database. without has an error for each schema
// without such messages.
func replaySchemas(ctx context.Context, targets []*cli.Target, tx pgx.Tx, what *replayCall, dry bool) (all []storedMessage, without []error, err error) {
	for _, t := range targets {
		r, err := operator.NewReplayer(t.DB, what.buildOptions(t.Schema))
		if err != nil {
			return nil, nil, err
		}
		do := r.Replay
		if dry {
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
			all = append(all, storedMessage{t.Name, k})
		}
	}
	return all, without, nil
}

// checkScopes returns an error if messages are of sagas in several scopes.
func checkScopes(all []storedMessage) error {
	var scopes []string
	for _, k := range all {
		scopes = append(scopes, cli.FormatCell(k.Scope))
	}
	slices.Sort(scopes)
	if scopes = slices.Compact(scopes); len(scopes) > 1 {
		return fmt.Errorf("the key is used in several scopes: say which with -scope: %s", cli.ClipText(strings.Join(scopes, " "), 10*cli.ReasonWidth))
	}
	return nil
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
