// Package why has the command that says where a saga is waiting.
package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sagamill/sagamill/cmd/sagamill/internal/cli"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/operator"
	"github.com/sagamill/sagamill/saga"
)

// A site is the part of a saga that one schema has.
type site struct {
	name  string
	out   operator.OutboxMessages
	in    operator.InboxRows
	sagas []operator.Timeline // a nested instance stands behind its parent
}

// Commands returns the commands of the family.
func Commands() []cli.Command {
	return []cli.Command{{Words: "why", About: "say where the saga of a KEY is waiting, in all services of the database", Run: explainSaga}}
}

func explainSaga(ctx context.Context, c *cli.Call) error {
	asJSON := c.Flags.Bool("json", false, "print JSON, a line each")
	c.Flags.Lookup("schema").Usage = "these schemas alone, separated by commas; default: all of the database that are sagamill's"
	at, err := c.ParseAddress(false)
	if err != nil {
		return err
	}
	db, err := c.OpenDatabase(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, cli.ReadTimeout)
	defer cancel()
	schemas, err := listSchemas(ctx, c, db)
	if err != nil {
		return err
	}
	q := &inquiry{scope: at.Scope}
	if err := q.collectSites(ctx, db, at, schemas); err != nil {
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

// listSchemas returns the schemas that -schema lists, or all of the database that have tables of
// sagamill.
func listSchemas(ctx context.Context, c *cli.Call, db *pgxpool.Pool) ([]migrations.Schema, error) {
	all, err := migrations.Schemas(ctx, db)
	if err != nil || !c.IsGiven([]string{"schema"}) {
		return all, err
	}
	var named []migrations.Schema
	for name := range strings.SplitSeq(*c.Schema, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(all, func(s migrations.Schema) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("schema %q has no tables of sagamill", name)
		}
		named = append(named, all[i])
	}
	return named, nil
}

// collectSites reads the saga's parts from all schemas, in one snapshot.
func (q *inquiry) collectSites(ctx context.Context, db *pgxpool.Pool, at saga.Address, schemas []migrations.Schema) error {
	readable := slices.DeleteFunc(slices.Clone(schemas), func(s migrations.Schema) bool { return !s.Readable() })
	for i := range schemas {
		q.noteDenied(&schemas[i])
	}
	snapshotTx := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, db, snapshotTx, func(tx pgx.Tx) error {
		for i := range readable { // before anything else is read
			l, err := operator.NewLocator(&operator.Options{Schema: readable[i].Name})
			if err == nil {
				err = l.Pin(ctx, tx)
			}
			if err != nil {
				return fmt.Errorf("schema %s: %w", readable[i].Name, err)
			}
		}
		for i := range readable {
			s := &site{name: readable[i].Name}
			if err := s.readSchema(ctx, db, tx, at, &readable[i]); err != nil {
				return fmt.Errorf("schema %s: %w", s.name, err)
			}
			q.sites = append(q.sites, s)
		}
		return q.checkScopes()
	})
}

// noteDenied adds a finding if s, or its instances, cannot be read.
func (q *inquiry) noteDenied(s *migrations.Schema) {
	switch {
	case len(s.Absent) > 0:
		q.unreadable = append(q.unreadable, Finding{What: "unreadable", Schema: s.Name, Text: "schema " + s.Name + " is left out: its migrations are older than this command, or it has no outbox"})
	case !s.Readable():
		q.unreadable = append(q.unreadable, Finding{What: "unreadable", Schema: s.Name, Text: "schema " + s.Name + " is left out: the role may not read " + strings.Join(s.Denied, ", ")})
	case len(s.SagasDenied) > 0:
		q.unreadable = append(q.unreadable, Finding{What: "unreadable", Schema: s.Name, Text: "instances in schema " + s.Name + " are left out: the role may not read " + strings.Join(s.SagasDenied, ", ")})
	}
}

func (s *site) readSchema(ctx context.Context, db *pgxpool.Pool, tx pgx.Tx, at saga.Address, schema *migrations.Schema) error {
	sent, err := operator.NewLocator(&operator.Options{Schema: s.name})
	if err != nil {
		return err
	}
	if s.out, err = sent.Outbox(ctx, tx, operator.LocateFilter{Scope: at.Scope, Key: at.Key}); err != nil {
		return err
	}
	handled, err := operator.NewLocator(&operator.Options{Schema: s.name})
	if err != nil {
		return err
	}
	if s.in, err = handled.Inbox(ctx, tx, operator.LocateFilter{Scope: at.Scope, Key: at.Key}); err != nil {
		return err
	}
	if !schema.Sagas || len(schema.SagasDenied) > 0 {
		return nil
	}
	n, err := operator.NewInstances(db, &operator.Options{Schema: s.name})
	if err != nil {
		return err
	}
	return s.readSagas(ctx, n, tx, at)
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
