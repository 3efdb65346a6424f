package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// trendParts is the number of counts in the trend of a group.
const trendParts = 12

// trendPart is the time of each count in a trend.
const trendPart = 5 * time.Minute

// Reason is that of package consumer, for programs that import no other package of this module.
type Reason = consumer.Reason

// A LetterGroup counts letters of one topic, step and reason whose errors have one fingerprint.
//
// The fingerprint is a digest of the error without its variable parts. These are quoted texts, words with a digit or an
// apostrophe, such as numbers, keys and UUIDs, and eight or more hexadecimal digits. Of a long error it covers the beginning.
type LetterGroup struct {
	Topic       string
	Step        string          // "": it could not be read or, of the outbox, the messages state none
	Reason      consumer.Reason // "" of the outbox
	Fingerprint string
	Error       string // of one of them, at most 300 characters
	Count       int
	Oldest      time.Time // the first of the last failures or refusals
	Newest      time.Time

	// Trend counts the letters that failed in each 5 minutes of the last hour, the oldest first.
	Trend [trendParts]int
}

// LetterGroups are the groups of the letters that a filter picks.
type LetterGroups struct {
	Groups  []LetterGroup // the largest first
	Total   int           // letters
	Missing int           // groups beyond the limit
}

// Group groups the letters that filter picks, and returns the limit largest groups. It takes no lock. 100,000 dead
// letters take 0.06 s of a core, and 0.14 s before their tables are vacuumed.
func (d *DeadLetters) Group(ctx context.Context, filter Filter, limit int) (LetterGroups, error) {
	return d.letters.groupLetters(ctx, filter, limit)
}

// A grouping says how letters of a table are grouped.
type grouping struct {
	table, reason, text, since string
	limit                      string // parameter
}

var (
	inboxGrouping  = grouping{"parked", "reason", "error", "last_at", "$16"}
	outboxGrouping = grouping{"outbox_held", "''", "reason", "{since}", "$13"}
)

// sqlGroupLetters counts the letters that a filter picks. The indexes parked_groups and outbox_held_groups have all that it
// reads of dead letters, in the order of their groups: after a vacuum, the server neither hashes nor sorts. The parts of the trend are counts since a
// moment, and no groups: the planner would expect as many groups as letters, and sort them.
const sqlGroupLetters = `
WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
groups AS (
	SELECT topic, {reason} AS reason, step, fingerprint, count(*) AS n, min({at}) AS oldest, max({at}) AS newest, max(id) AS sample, {trend} AS trend
	FROM {schema}.{table} WHERE {picked} GROUP BY 1, 2, 3, 4)
SELECT topic, coalesce(step, ''), reason, fingerprint, coalesce((SELECT left({text}, 300) FROM {schema}.{table} l WHERE l.id = sample), ''), n, oldest, newest, trend,
	(sum(n) OVER ())::bigint, count(*) OVER ()
FROM groups ORDER BY n DESC, 1, 2, 3, 4 LIMIT {limit}`

// groupedLetters returns the statement of a grouping, with the condition of its filter to be filled in.
func groupedLetters(g grouping) string {
	counts := make([]string, trendParts) // since the beginning of each part, that of the last hour first
	for i := range counts {
		counts[i] = fmt.Sprintf("count(*) FILTER (WHERE {at} > (SELECT now - interval '%d seconds' FROM moment))", int(trendPart.Seconds())*(trendParts-i))
	}
	statement := strings.ReplaceAll(sqlGroupLetters, "{trend}", "ARRAY["+strings.Join(counts, ", ")+"]")
	return strings.NewReplacer("{at}", g.since, "{table}", g.table, "{reason}", g.reason, "{text}", g.text, "{limit}", g.limit).Replace(statement)
}

func (d *inboxLetters) groupLetters(ctx context.Context, filter Filter, limit int) (LetterGroups, error) {
	args, err := d.filterArgs(ctx, filter, 0)
	if err != nil {
		return LetterGroups{}, fmt.Errorf("operator: group dead letters: %w", sqlschema.Explain(err))
	}
	return d.readGroups(ctx, d.sql.group.forState(filter.State), append(args, min(limit, MaxList)))
}

func (d *outboxLetters) groupLetters(ctx context.Context, filter Filter, limit int) (LetterGroups, error) {
	statement := d.sql.group
	if filter.State == StateRetrying {
		statement = d.sql.groupRetrying
	}
	args, err := d.filterArgs(ctx, filter, 0, false)
	if err != nil {
		return LetterGroups{}, fmt.Errorf("operator: group dead letters: %w", sqlschema.Explain(err))
	}
	return d.readGroups(ctx, statement, append(args, min(limit, MaxList)))
}

func (e *engine) readGroups(ctx context.Context, statement string, args []any) (all LetterGroups, err error) {
	all.Groups, err = readRows(ctx, e, statement, args, func(row pgx.CollectableRow) (g LetterGroup, err error) {
		var since []int // counts since the beginning of each part
		err = row.Scan(&g.Topic, &g.Step, &g.Reason, &g.Fingerprint, &g.Error, &g.Count, &g.Oldest, &g.Newest, &since, &all.Total, &all.Missing)
		for i := 0; err == nil && i < trendParts; i++ {
			if g.Trend[i] = since[i]; i+1 < trendParts {
				g.Trend[i] -= since[i+1]
			}
		}
		return g, err
	})
	if err != nil {
		return LetterGroups{}, fmt.Errorf("operator: group dead letters: %w", sqlschema.Explain(err))
	}
	all.Missing -= len(all.Groups)
	return all, nil
}

// readRows reads the rows of a statement, within [Options].ReadTimeout.
func readRows[T any](ctx context.Context, e *engine, statement string, args []any, scan func(pgx.CollectableRow) (T, error)) (all []T, err error) {
	err = e.readLimited(ctx, func(db querier) (err error) {
		rows, _ := db.Query(ctx, statement, args...)
		all, err = pgx.CollectRows(rows, scan)
		return err
	})
	return all, err
}

// readLetter reads the letter with an id, and at most limit bytes of its payload.
func readLetter(ctx context.Context, e *engine, statement string, id int64, limit int, scan func(pgx.CollectableRow) (DeadLetter, error)) (letter DeadLetter, err error) {
	err = e.readLimited(ctx, func(db querier) (err error) {
		rows, _ := db.Query(ctx, statement, id, limit)
		letter, err = pgx.CollectExactlyOneRow(rows, scan)
		return err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return letter, ErrNoDeadLetter
	case err != nil:
		return letter, fmt.Errorf("operator: read dead letter %d: %w", id, sqlschema.Explain(err))
	}
	return letter, nil
}

// formatMoment returns t for the journal, and "" for the zero time.
func formatMoment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// formatFlag returns "true" for the journal, or "".
func formatFlag(set bool) string {
	if set {
		return "true"
	}
	return ""
}
