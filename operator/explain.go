package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/celltext"
	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sqlschema"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/saga"
)

// A Source is a schema in which [Explain] looks for a saga.
type Source struct {
	DB     *pgxpool.Pool
	Schema string
	Name   string // for people
	Flags  string // that name it on a command line of sagamill; they begin with a blank
}

// ExplainOptions change [Explain]. A nil *ExplainOptions means the defaults.
type ExplainOptions struct {
	// NeedsInbox makes a source without an inbox an error. Default: it is passed over.
	NeedsInbox bool

	// Here names the databases in sentences. Default: this database, or these databases.
	Here string

	// ReadTimeout is that of [Options], for each statement. Default: no limit.
	ReadTimeout time.Duration

	// Buttons is for pages: sentences name verbs, for which a page has buttons, in place of commands of sagamill. See
	// Finding.Commands.
	Buttons bool

	// Redact returns what parts and sentences have of a text of others. kind is "error", for an error of a handler or of
	// the broker and for the reason of an instance or of a step, or "reason", for what a person has written. name is the
	// topic of the message, or the name of the saga. Default: the text itself.
	Redact func(kind, name, text string) string
}

// A SagaPart is the part of a saga that one schema has.
type SagaPart struct {
	Source
	Outbox OutboxMessages
	Inbox  InboxRows
	Sagas  []Timeline // of the instance and of those nested in it, each behind the one around it
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
	Text   string `json:"text"` // the sentence; it may have text of others, which is neither escaped nor clipped

	// Commands are command lines of sagamill for what the sentence names. Only with ExplainOptions.Buttons: else they are in
	// the sentence.
	Commands []string `json:"commands,omitempty"`
}

// An Explanation says where a saga is, and what it waits for.
type Explanation struct {
	Findings   []Finding // none: nothing is known of the saga
	Unreadable []Finding // schemas and instances that were left out
	Parts      []*SagaPart
}

// A ScopesError reports a key that several scopes use.
type ScopesError struct{ Scopes []string }

// Error lists the scopes.
func (e *ScopesError) Error() string {
	cells := make([]string, len(e.Scopes))
	for i, scope := range e.Scopes {
		cells[i] = celltext.FormatCell(scope)
	}
	return "the key is used in several scopes: say which with -scope: " + celltext.ClipText(strings.Join(cells, " "), 1000)
}

// Explain finds out where a saga is waiting: it reads what the sources have of the saga at an address, follows the last
// message of each step from service to service, and says it in sentences. Without a scope the key must be of one scope,
// or the error is a [ScopesError]; a key that was used again, without a path, is an [ErrAmbiguous].
//
// Each database is read in one snapshot. The snapshots are taken one after the other before anything is read, so they
// are almost of one moment. Explain takes no lock that others wait for, and changes nothing. Its cost is that of
// [Locator.Outbox] in each source. A source that the role may not read is left out: see Explanation.Unreadable.
func Explain(ctx context.Context, sources []Source, at Address, opts *ExplainOptions) (*Explanation, error) {
	o := ExplainOptions{}
	if opts != nil {
		o = *opts
	}
	q := &inquiry{scope: at.Scope, options: o, here: o.Here}
	databases, err := q.groupReadable(ctx, sources)
	if err != nil {
		return nil, err
	}
	if q.here == "" {
		q.here = map[bool]string{false: "this database", true: "these databases"}[len(databases) > 1]
	}
	err = q.takeSnapshots(ctx, databases, func() error {
		for _, p := range slices.Concat(databases...) {
			part, err := q.readPart(ctx, p, at)
			if err != nil {
				return fmt.Errorf("schema %s: %w", p.Name, err)
			}
			part.redact(q.options.Redact)
			q.parts = append(q.parts, part)
		}
		return q.checkScopes()
	})
	if err != nil {
		return nil, err
	}
	q.investigate()
	return &Explanation{Findings: q.found, Unreadable: q.unreadable, Parts: q.parts}, nil
}

// A snapshotSource is a source that the role may read, with the snapshot of its database.
type snapshotSource struct {
	Source
	has migrations.Schema
	tx  pgx.Tx
}

// groupReadable returns the sources that hold parts of sagas, by database, and notes those that the role may not read.
func (q *inquiry) groupReadable(ctx context.Context, sources []Source) (databases [][]*snapshotSource, err error) {
	var pools []*pgxpool.Pool
	for i := range sources {
		if !slices.Contains(pools, sources[i].DB) {
			pools = append(pools, sources[i].DB)
		}
	}
	for _, pool := range pools {
		all, err := migrations.Schemas(ctx, pool)
		if err != nil {
			return nil, err
		}
		var readable []*snapshotSource
		for _, s := range sources {
			if s.DB != pool {
				continue
			}
			i := slices.IndexFunc(all, func(has migrations.Schema) bool { return has.Name == s.Schema })
			if i < 0 && q.options.NeedsInbox {
				return nil, fmt.Errorf("schema %q has no tables of sagamill, or no inbox", s.Name)
			}
			if i < 0 {
				continue
			}
			q.noteDenied(&s, &all[i])
			if all[i].Readable() {
				readable = append(readable, &snapshotSource{Source: s, has: all[i]})
			}
		}
		if len(readable) > 0 {
			databases = append(databases, readable)
		}
	}
	return databases, nil
}

// takeSnapshots calls do while each source has a snapshot of its database.
func (q *inquiry) takeSnapshots(ctx context.Context, databases [][]*snapshotSource, do func() error) error {
	if len(databases) == 0 {
		return do()
	}
	sources := databases[0]
	snapshot := pgx.TxOptions{BeginQuery: beginRead(pgx.RepeatableRead, q.options.ReadTimeout)}
	return pg.NewOwn(sources[0].DB).InTx(ctx, snapshot, func(tx pgx.Tx) error {
		for _, s := range sources { // before anything else is read
			l, err := NewLocator(&Options{Schema: s.Schema})
			if err == nil {
				err = l.Pin(ctx, tx)
			}
			if err != nil {
				return fmt.Errorf("schema %s: %w", s.Name, err)
			}
			s.tx = tx
		}
		return q.takeSnapshots(ctx, databases[1:], do)
	})
}

// noteDenied adds a finding if a schema, or its instances, cannot be read.
func (q *inquiry) noteDenied(s *Source, has *migrations.Schema) {
	note := func(text string) {
		q.unreadable = append(q.unreadable, Finding{What: "unreadable", Schema: s.Name, Text: text})
	}
	switch {
	case len(has.Absent) > 0:
		note("schema " + s.Name + " is left out: its migrations are older than this command, or it has no outbox")
	case !has.Readable():
		note("schema " + s.Name + " is left out: the role may not read " + strings.Join(has.Denied, ", "))
	case len(has.SagasDenied) > 0:
		note("instances in schema " + s.Name + " are left out: the role may not read " + strings.Join(has.SagasDenied, ", "))
	}
}

func (q *inquiry) readPart(ctx context.Context, s *snapshotSource, at Address) (*SagaPart, error) {
	l, err := NewLocator(&Options{Schema: s.Schema})
	if err != nil {
		return nil, err
	}
	p := &SagaPart{Source: s.Source}
	if p.Outbox, err = l.Outbox(ctx, s.tx, LocateFilter{Scope: at.Scope, Key: at.Key}); err != nil {
		return nil, err
	}
	if p.Inbox, err = l.Inbox(ctx, s.tx, LocateFilter{Scope: at.Scope, Key: at.Key}); err != nil {
		return nil, err
	}
	if !s.has.Sagas || len(s.has.SagasDenied) > 0 {
		return p, nil
	}
	n, err := NewInstances(s.DB, &Options{Schema: s.Schema})
	if err != nil {
		return nil, err
	}
	return p, p.readSagas(ctx, n, s.tx, at)
}

// readSagas reads an instance and those nested in it.
func (p *SagaPart) readSagas(ctx context.Context, n *Instances, tx pgx.Tx, at Address) error {
	t, err := n.Read(ctx, tx, at)
	if errors.Is(err, saga.ErrNoInstance) {
		return nil
	}
	if err != nil {
		return err
	}
	p.Sagas = append(p.Sagas, t)
	for _, nested := range t.Nested {
		within, err := n.Read(ctx, tx, nested.Address)
		if err != nil {
			return err
		}
		p.Sagas = append(p.Sagas, within)
	}
	return nil
}

// checkScopes returns an error if the parts are of several scopes.
func (q *inquiry) checkScopes() error {
	var scopes []string
	for _, p := range q.parts {
		for i := range p.Sagas {
			scopes = append(scopes, p.Sagas[i].Scope)
		}
		for i := range p.Outbox.Messages {
			scopes = append(scopes, p.Outbox.Messages[i].Scope)
		}
		for i := range p.Inbox.Steps {
			scopes = append(scopes, p.Inbox.Steps[i].Scope)
		}
		for i := range p.Inbox.Letters {
			scopes = append(scopes, p.Inbox.Letters[i].Scope)
		}
	}
	slices.Sort(scopes)
	if scopes = slices.Compact(scopes); len(scopes) < 2 {
		return nil
	}
	return &ScopesError{scopes}
}

// A MessageContent is what a message of an outbox carries.
type MessageContent struct {
	ID          int64 // of [OutboxMessage]
	ContentType string
	Headers     map[string]string // those of the application and of traces; the relay adds others
	Payload     []byte            // nil: it is larger than the limit
}

// Contents returns what messages of the outbox carry, by the index of their IDs. It leaves out a payload of more than
// limit bytes, and a message that is not in the outbox any more.
func (l *Locator) Contents(ctx context.Context, tx pgx.Tx, ids []int64, limit int) ([]MessageContent, error) {
	rows, _ := tx.Query(ctx, l.outbox.readContents, ids, limit)
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c MessageContent, err error) {
		err = r.Scan(&c.ID, &c.ContentType, &c.Headers, &c.Payload)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("operator: read messages: %w", sqlschema.Explain(err))
	}
	return all, nil
}
