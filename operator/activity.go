package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// An ActivitySource is one of the journals of a schema.
type ActivitySource string

// The sources.
const (
	MessageActivity ActivitySource = "messages" // operator_journal: changes of messages
	SagaActivity    ActivitySource = "sagas"    // saga_journal: decisions about instances
)

// An ActivityFilter picks entries. An entry matches if it matches every field that is not zero.
type ActivityFilter struct {
	By    string
	Verb  string
	Since time.Time
	Until time.Time // exclusive

	Key string // decisions about instances of this key, and no changes of messages

	// IDs picks changes of one of these messages of Side, and no decisions about instances. The journal keeps entries of
	// messages that are gone.
	IDs  []int64
	Side Side
}

// An ActivityMark is where a list of activities goes on: behind all entries of At whose ID is not below this one. The zero
// mark is the newest entry.
type ActivityMark struct {
	At time.Time
	ID int64
}

// An Activity is something that a person has done, from either journal.
type Activity struct {
	Source ActivitySource
	ID     int64
	At     time.Time
	By     string
	DBUser string // the login role, of messages only
	Verb   string
	Why    string

	// Of messages: What is as in [JournalEntry], Messages is how many were changed, and FirstIDs are up to five of them.
	What     json.RawMessage
	Messages int
	FirstIDs []int64

	Scope, Key, Path, Step string // of sagas: the instance, and the step that the decision was about
}

// ListActivities lists what people have done according to one journal, the newest first: at most limit, and at most
// [MaxList]. It is empty if the schema does not have the journal.
func (r *Reader) ListActivities(ctx context.Context, source ActivitySource, filter ActivityFilter, before ActivityMark, limit int) (all []Activity, err error) {
	statement := r.sql.listMessageActivity
	if source == SagaActivity {
		statement = r.sql.listSagaActivity
	}
	err = r.read(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, statement, plannedAnew, filter.By, filter.Verb, timeOrNil(filter.Since), timeOrNil(filter.Until), timeOrNil(before.At), before.ID, min(limit, MaxList),
			filter.Key, filter.IDs, filter.Side == Outbox)
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Activity, err error) {
			var what string
			err = row.Scan(&a.ID, &a.At, &a.By, &a.DBUser, &a.Verb, &a.Why, &what, &a.Messages, &a.FirstIDs, &a.Scope, &a.Key, &a.Path, &a.Step)
			if a.Source = source; what != "" {
				a.What = json.RawMessage(what)
			}
			return a, err
		})
		return err
	})
	switch {
	case sqlschema.Missing(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("operator: list activities: %w", err)
	}
	return all, nil
}
