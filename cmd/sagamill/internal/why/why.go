// Package why has the command that says where a saga is waiting.
package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// A site is the part of a saga that one schema has.
type site struct {
	name  string // of its target
	flags string // that name it on a command line
	out   operator.OutboxMessages
	in    operator.InboxRows
	sagas []operator.Timeline // a nested instance stands behind its parent
}

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "why", About: "say where the saga of a KEY is waiting, in all services of the database", Run: explainSaga}}
}

func explainSaga(ctx context.Context, c *cli.Call) error {
	c.TakeSeveral(cli.EverySchema)
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each")
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
	q := &inquiry{scope: at.Scope, here: "this database"}
	if len(targets.ByDatabase()) > 1 {
		q.here = "these databases"
	}
	if err := q.collectSites(ctx, at, targets, c.IsGiven([]string{"schema"})); err != nil {
		return err
	}
	q.investigate()
	for _, f := range append(q.found, q.unreadable...) {
		if err := printFinding(c, f, *asJSON); err != nil {
			return err
		}
	}
	if len(q.found) == 0 {
		return cli.SuggestKey(at.Key, fmt.Errorf("nothing is known of %s in %s (what came without a key that can be read is in sagamill dead list -kind unknown)", cli.FormatCell(at.Key), cli.FormatCount(len(q.sites), "schemas")))
	}
	return nil
}

// A part is a schema that the role may read, with the snapshot of its database.
type part struct {
	*cli.Target
	schema migrations.Schema
	tx     pgx.Tx
}

// collectSites reads the saga's parts from all schemas, in one snapshot of each database. The snapshots are taken one
// after the other before anything is read, so they are almost of one moment.
func (q *inquiry) collectSites(ctx context.Context, at saga.Address, targets *cli.Targets, named bool) error {
	var databases [][]*part
	for _, of := range targets.ByDatabase() {
		readable, err := q.listReadable(ctx, of, named)
		if err != nil {
			return err
		}
		if len(readable) > 0 {
			databases = append(databases, readable)
		}
	}
	return takeSnapshots(ctx, databases, func() error {
		for _, p := range slices.Concat(databases...) {
			s := &site{name: p.Name, flags: p.Flags}
			if err := s.readSchema(ctx, p, at); err != nil {
				return fmt.Errorf("schema %s: %w", p.Name, err)
			}
			q.sites = append(q.sites, s)
		}
		return q.checkScopes()
	})
}

// listReadable returns the targets of a database that hold parts of sagas, and notes those that the role may not read.
// A target without an inbox is an error if the command line names it.
func (q *inquiry) listReadable(ctx context.Context, targets []*cli.Target, named bool) (readable []*part, err error) {
	all, err := migrations.Schemas(ctx, targets[0].DB)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		i := slices.IndexFunc(all, func(s migrations.Schema) bool { return s.Name == t.Schema })
		if i < 0 && named {
			return nil, fmt.Errorf("schema %q has no tables of sagamill, or no inbox", t.Name)
		}
		if i < 0 {
			continue
		}
		q.noteDenied(t, &all[i])
		if all[i].Readable() {
			readable = append(readable, &part{Target: t, schema: all[i]})
		}
	}
	return readable, nil
}

// takeSnapshots calls do while each part has a snapshot of its database.
func takeSnapshots(ctx context.Context, databases [][]*part, do func() error) error {
	if len(databases) == 0 {
		return do()
	}
	parts := databases[0]
	snapshotTx := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, parts[0].DB, snapshotTx, func(tx pgx.Tx) error {
		for _, p := range parts { // before anything else is read
			l, err := operator.NewLocator(&operator.Options{Schema: p.Schema})
			if err == nil {
				err = l.Pin(ctx, tx)
			}
			if err != nil {
				return fmt.Errorf("schema %s: %w", p.Name, err)
			}
			p.tx = tx
		}
		return takeSnapshots(ctx, databases[1:], do)
	})
}

// noteDenied adds a finding if a schema, or its instances, cannot be read.
func (q *inquiry) noteDenied(t *cli.Target, s *migrations.Schema) {
	note := func(text string) {
		q.unreadable = append(q.unreadable, Finding{What: "unreadable", Schema: t.Name, Text: text})
	}
	switch {
	case len(s.Absent) > 0:
		note("schema " + t.Name + " is left out: its migrations are older than this command, or it has no outbox")
	case !s.Readable():
		note("schema " + t.Name + " is left out: the role may not read " + strings.Join(s.Denied, ", "))
	case len(s.SagasDenied) > 0:
		note("instances in schema " + t.Name + " are left out: the role may not read " + strings.Join(s.SagasDenied, ", "))
	}
}

func (s *site) readSchema(ctx context.Context, p *part, at saga.Address) error {
	l, err := operator.NewLocator(&operator.Options{Schema: p.Schema})
	if err != nil {
		return err
	}
	if s.out, err = l.Outbox(ctx, p.tx, operator.LocateFilter{Scope: at.Scope, Key: at.Key}); err != nil {
		return err
	}
	if s.in, err = l.Inbox(ctx, p.tx, operator.LocateFilter{Scope: at.Scope, Key: at.Key}); err != nil {
		return err
	}
	if !p.schema.Sagas || len(p.schema.SagasDenied) > 0 {
		return nil
	}
	n, err := p.OpenInstances()
	if err != nil {
		return err
	}
	return s.readSagas(ctx, n, p.tx, at)
}

// readSagas reads an instance and those nested in it.
func (s *site) readSagas(ctx context.Context, n *operator.Instances, tx pgx.Tx, at saga.Address) error {
	t, err := n.Read(ctx, tx, at)
	if errors.Is(err, saga.ErrNoInstance) {
		return nil
	}
	if err != nil {
		return err
	}
	s.sagas = append(s.sagas, t)
	for _, nested := range t.Nested {
		within, err := n.Read(ctx, tx, nested.Address)
		if err != nil {
			return err
		}
		s.sagas = append(s.sagas, within)
	}
	return nil
}

// checkScopes returns an error if the sites have sagas of several scopes.
func (q *inquiry) checkScopes() error {
	var scopes []string
	for _, s := range q.sites {
		for i := range s.sagas {
			scopes = append(scopes, s.sagas[i].Scope)
		}
		for i := range s.out.Messages {
			scopes = append(scopes, s.out.Messages[i].Scope)
		}
		for i := range s.in.Steps {
			scopes = append(scopes, s.in.Steps[i].Scope)
		}
		for i := range s.in.Letters {
			scopes = append(scopes, s.in.Letters[i].Scope)
		}
	}
	slices.Sort(scopes)
	if scopes = slices.Compact(scopes); len(scopes) < 2 {
		return nil
	}
	for i := range scopes {
		scopes[i] = cli.FormatCell(scopes[i])
	}
	return fmt.Errorf("the key is used in several scopes: say which with -scope: %s", cli.ClipText(strings.Join(scopes, " "), 10*cli.ReasonWidth))
}

// A Finding is a fact about a saga, or something that it waits for.
type Finding struct {
	What   string `json:"what"`
	Schema string `json:"schema"`
	Saga   string `json:"saga,omitempty"` // of an instance, with where it is nested
	Path   string `json:"path,omitempty"`
	Step   string `json:"step,omitempty"`
	N      string `json:"n,omitempty"`
	ID     int64  `json:"id,omitempty"` // of a dead letter, or a message of an outbox
	Since  string `json:"since,omitempty"`
	Until  string `json:"until,omitempty"`
	Start  string `json:"started_at,omitempty"` // of an instance
	Moved  string `json:"updated_at,omitempty"`
	Text   string `json:"text"`
}

// printFinding prints the text of f, or f as JSON.
func printFinding(c *cli.Call, f Finding, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(c.Stdout, f)
	}
	_, err := fmt.Fprintln(c.Stdout, cli.EscapeText(f.Text))
	return err
}
