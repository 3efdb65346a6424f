package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A JournalEntry is one transaction of an operator that has changed messages. A call that
// changes many has several entries.
type JournalEntry struct {
	ID     int64
	At     time.Time
	By     string // the person, as stated in [Options]
	DBUser string // the login role, as the server reports it
	Verb   string // in the words of the command sagamill, such as "dead redrive"
	Why    string

	// What describes the choice of the messages. For a filter it is an object of texts, with the fields that
	// were set. It is empty if the messages were named by ids. For an edit it has names of headers and digests
	// of payloads.
	What json.RawMessage

	IDs []int64 // the messages that were changed, removed or replayed
}

// ReadJournal returns what operators have done to the messages of inbox and outbox in a
// schema, the newest entry first: those since then, and with an ID below before unless that is
// 0; at most limit, and at most [MaxList]. Only the owner of the tables can remove an entry.
// Decisions about sagas are in their own journal: see [Timeline].
func ReadJournal(ctx context.Context, db *pgxpool.Pool, opts *Options, since time.Time, before int64, limit int) ([]JournalEntry, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	rows, _ := db.Query(ctx, newOutboxQueries(o.Schema).listJournal, timeOrNil(since), before, min(limit, MaxList))
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e JournalEntry, err error) {
		return e, row.Scan(&e.ID, &e.At, &e.By, &e.DBUser, &e.Verb, &e.What, &e.IDs, &e.Why)
	})
	if err != nil {
		return nil, fmt.Errorf("operator: read journal: %w", sqlschema.Explain(err))
	}
	return entries, nil
}
