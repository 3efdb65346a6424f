package operator

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// A MatchKind says what a [Match] has found.
type MatchKind string

// The kinds.
const (
	MatchInstance MatchKind = "saga"
	MatchStep     MatchKind = "step" // a row of the inbox
	MatchMessage  MatchKind = "message"
	MatchParked   MatchKind = "parked message"
	MatchRequest  MatchKind = "idempotency key"
)

// A Match is something that a text names.
type Match struct {
	Kind             MatchKind
	Scope, Key, Path string // of the saga that it is part of; empty: a parked message that could not be read
	Name             string // of the saga or the step, or the type of the message
	ID               int64  // of a message of the outbox or a parked message
	UUID             string // of a saga or a message
}

// A Search is what [Reader.Search] has found.
type Search struct {
	Matches []Match
	Skipped []SkippedSearch // where it has not looked
}

// A SkippedSearch is a kind that was not looked for.
type SkippedSearch struct {
	Kind MatchKind
	Err  error // why: of the server, often a missing grant or a time limit
}

// maxMatches is how many of each kind a search returns.
const maxMatches = 50

// Search finds what text names: an idempotency key, the id of an instance or of a message, or a correlation id. Nothing
// is not an error. It takes no lock. What cannot be read is in Skipped, and does not hide the others.
//
// Keys and ids of instances are looked up first. Only if there are none, Search looks for the ids of messages, of their
// correlations and of their causes. It finds those of the log and of the dead letters by indexes, and reads the held and the
// retrying messages once, 0.7 s for each million in memory.
func (r *Reader) Search(ctx context.Context, text string) (found Search, err error) {
	if text == "" {
		return found, fmt.Errorf("operator: search: %w: a text is needed", ErrInvalid)
	}
	var id *uuid.UUID
	if parsed, err := uuid.Parse(text); err == nil {
		id = &parsed
	}
	read := r.read
	look := func(kind MatchKind, statement string, scan func(pgx.CollectableRow, *Match) error, args ...any) {
		err := read(ctx, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, statement, append([]any{plannedAnew}, args...)...)
			matches, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Match, err error) {
				m.Kind = kind
				return m, scan(row, &m)
			})
			found.Matches = append(found.Matches, matches...)
			return err
		})
		if err != nil && !sqlschema.Missing(err) {
			found.Skipped = append(found.Skipped, SkippedSearch{kind, err})
		}
	}
	scanInstance := func(row pgx.CollectableRow, m *Match) error {
		var status string
		return row.Scan(&m.Scope, &m.Key, &m.Path, &m.Name, &m.UUID, &status)
	}
	look(MatchInstance, r.sql.findInstances, scanInstance, "", text, maxMatches, nil)
	if id != nil && len(found.Matches) == 0 {
		if at, ok := r.findInstanceID(ctx, *id, &found); ok {
			look(MatchInstance, r.sql.findInstances, scanInstance, at.Scope, at.Key, maxMatches, *id)
		}
	}
	look(MatchStep, r.sql.findSteps, func(row pgx.CollectableRow, m *Match) error {
		var s StepRow
		err := row.Scan(&m.Scope, &m.Key, &m.Name, &s.N, &s.State, &s.Attempts, &s.UndoAttempts, &s.CreatedAt, &s.UpdatedAt)
		return err
	}, "", text, maxMatches)
	look(MatchRequest, r.sql.findRequests, func(row pgx.CollectableRow, m *Match) error {
		var q RequestRecord
		var size *int64
		var completed, expires any
		return row.Scan(&m.Name, &m.Scope, &m.Key, &q.State, &q.Attempt, &q.LeaseUntil, &q.Status, &size, &q.CreatedAt, &completed, &expires, &q.At)
	}, "", "", text, maxMatches)
	if len(found.Matches) > 0 {
		return found, ctx.Err()
	}
	read = r.readBySearch
	look(MatchMessage, r.sql.findMessages, func(row pgx.CollectableRow, m *Match) error {
		return row.Scan(&m.Scope, &m.Key, &m.Name, &m.ID, &m.UUID)
	}, id, text, maxMatches)
	read = r.read
	look(MatchParked, r.sql.findParked, func(row pgx.CollectableRow, m *Match) error {
		return row.Scan(&m.Scope, &m.Key, &m.Name, &m.ID)
	}, []byte(text), maxMatches)
	return found, ctx.Err()
}

// findInstanceID returns the address of the instance with an id. An error is noted in found.
func (r *Reader) findInstanceID(ctx context.Context, id uuid.UUID, found *Search) (at Address, known bool) {
	err := r.read(ctx, func(tx pgx.Tx) (err error) {
		at, known, err = findInstanceID(ctx, tx, r.sql.findID, id)
		return err
	})
	if err != nil && !sqlschema.Missing(err) {
		found.Skipped = append(found.Skipped, SkippedSearch{MatchInstance, err})
	}
	return at, known
}
