package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/journal"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// An Operator is who changes stored messages by hand, and why. Each transaction that does
// so leaves a row that says it: see [ReadJournal].
type Operator struct {
	By  string // who; default: the role that the session has logged in as
	Why string // default: nothing is said
}

// A JournalEntry is what an operator has done in one transaction. What is picked by a
// filter, or is a lot, takes several.
type JournalEntry struct {
	ID     int64
	At     time.Time
	By     string // as they said
	DBUser string // who had logged in, by the server's word
	Verb   string // in the words of the command sagamill, such as "dead redrive"
	Why    string

	// What picked the messages, as an object of texts: the fields of the filter that were
	// set, empty if the messages were named by their ids. Of an edit it has the names of
	// headers and the digests of payloads.
	What json.RawMessage

	// IDs are those of the messages that were changed, removed or replayed.
	IDs []int64
}

// ReadJournal returns what operators have done to the messages in schema, by default
// sagamill, of inbox and outbox: the newest first, since then, and below the ID before
// unless that is 0; at most limit, and at most [MaxList]. Nothing ever removes an entry but
// the owner of the tables. What was decided about sagas is in their own journal.
func ReadJournal(ctx context.Context, db *pgxpool.Pool, schema string, since time.Time, before int64, limit int) ([]JournalEntry, error) {
	schema = cmp.Or(schema, sqlschema.Default)
	if err := sqlschema.Check(schema); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	rows, _ := db.Query(ctx, newQueries(schema).listJournal, orNil(since), before, min(limit, MaxList))
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e JournalEntry, err error) {
		return e, row.Scan(&e.ID, &e.At, &e.By, &e.DBUser, &e.Verb, &e.What, &e.IDs, &e.Why)
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: read journal: %w", sqlschema.Explain(err))
	}
	return entries, nil
}

// note writes what o has done in tx, unless it was nothing.
func (q *queries) note(ctx context.Context, tx pgx.Tx, o Operator, verb string, what map[string]string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, q.insertJournal, journal.Args(o.By, o.Why, verb, what, ids)...); err != nil {
		return fmt.Errorf("write journal: %w", sqlschema.Explain(err))
	}
	return nil
}

// what is f for the journal.
func (f *DeadFilter) what() map[string]string {
	return journal.What("message", f.MessageID, "topic", f.Topic, "scope", f.Scope, "key", f.Key, "reason", f.Reason, "older", sayAge(f.Older))
}

// what is f for the journal.
func (f *ReplayFilter) what() map[string]string {
	return journal.What("scope", f.Scope, "key", f.Key, "since", sayTime(f.Since), "until", sayTime(f.Until))
}

func sayAge(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func sayTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
