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

const (
	// comparedLetters is how many letters [DeadLetters.Group] reads the errors of. Each costs some 7 µs.
	comparedLetters = 10_000

	// trendParts is the number of counts in the trend of a group.
	trendParts = 12
)

// trendPart is the time of each count in a trend.
const trendPart = 5 * time.Minute

// Reason is that of package consumer, for programs that import no other package of this module.
type Reason = consumer.Reason

// A LetterGroup counts letters of one topic, step and reason whose errors have one fingerprint.
//
// The fingerprint is a digest of the error without its variable parts. These are quoted texts and the words that have a
// digit, such as numbers, keys, UUIDs and hexadecimal addresses. Of a long error it covers the beginning.
type LetterGroup struct {
	Topic       string
	Step        string          // "": it could not be read or, of the outbox, the messages state none
	Reason      consumer.Reason // "" of the outbox
	Fingerprint string          // "": older letters, whose errors were not compared
	Error       string          // of one of them, at most 300 characters
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

// Group groups the letters that filter picks, and returns the limit largest groups. It compares the errors of the newest
// 10,000 letters. Older ones are counted by topic, step and reason. It takes no lock. 100,000 letters take 0.13 s of a core.
func (d *DeadLetters) Group(ctx context.Context, filter Filter, limit int) (LetterGroups, error) {
	return d.letters.groupLetters(ctx, filter, limit)
}

// sqlFingerprint returns the fingerprint of a column. It is the only place that says what varies in an error: a quoted
// text, which may end with the error, and a word that has a digit or an apostrophe, or is hexadecimal. It masks before it
// cuts, so that the length of a variable part does not move the end. A word is tried from its beginning only: from each of
// its letters, an error of one long word would cost the square of its length.
func sqlFingerprint(column string) string {
	return strings.ReplaceAll(`left(encode(sha256(convert_to({masked}, 'UTF8')), 'hex'), 16)`, "{masked}", sqlMasked(column))
}

func sqlMasked(column string) string {
	const variable = `"(?:\\.|[^"\\])*(?:"|$)|(?<![[:alnum:]_-])[[:alnum:]_-]*[0-9][[:alnum:]_-]*|(?<![[:alnum:]])[[:alnum:]]+''[[:alnum:]]+|''[^'']*(?:''|$)|` + "`[^`]*(?:`|$)" + `|[0-9a-fA-F]{8,}`
	return `left(regexp_replace(left(` + column + `, 1000), '` + variable + `', '?', 'g'), 160)`
}

// A grouping says how letters of a table are grouped.
type grouping struct {
	table, step, reason, text, since string
	compared, limit                  string // parameters
}

var (
	inboxGrouping  = grouping{"parked", "coalesce(step, '')", "reason", "error", "last_at", "$16", "$17"}
	outboxGrouping = grouping{"outbox_held", "step", "''", "reason", "{since}", "$13", "$14"}
)

// sqlGroupLetters counts the letters that a filter picks, in two parts: the newest ones by their errors too, all others
// without them. It reads all of these letters, and the errors of the newest. The parts of the trend are counts since a
// moment, and no groups: the planner would expect as many groups as letters, and sort them.
const sqlGroupLetters = `
WITH newest AS MATERIALIZED (
	SELECT id, topic, {step} AS step, {reason} AS reason, {text} AS text, {at} AS at
	FROM {schema}.{table} WHERE {picked} ORDER BY {at} DESC, id DESC LIMIT {compared}),
edge AS MATERIALIZED (SELECT at, id FROM newest ORDER BY at, id LIMIT 1),
moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
parts AS (
	SELECT topic, step, reason, {masked} AS masked, max(left(text, 300)) AS text, count(*) AS n, min(at) AS oldest, max(at) AS newest, {trend newest} AS trend
	FROM newest GROUP BY 1, 2, 3, 4
	UNION ALL
	SELECT topic, {step}, {reason}, NULL, '', count(*), min({at}), max({at}), {trend table}
	FROM {schema}.{table} WHERE {picked} AND ({at}, id) < ((SELECT at FROM edge), (SELECT id FROM edge)) GROUP BY 1, 2, 3)
SELECT topic, step, reason, coalesce(left(encode(sha256(convert_to(masked, 'UTF8')), 'hex'), 16), ''), text, n, oldest, newest, trend,
	(sum(n) OVER ())::bigint, count(*) OVER ()
FROM parts ORDER BY n DESC, topic, step, reason, masked LIMIT {limit}`

// groupedLetters returns the statement of a grouping, with the condition of its filter to be filled in.
func groupedLetters(g grouping) string {
	trend := func(at string) string {
		counts := make([]string, trendParts) // since the beginning of each part, that of the last hour first
		for i := range counts {
			counts[i] = fmt.Sprintf("count(*) FILTER (WHERE %s > (SELECT now - interval '%d seconds' FROM moment))", at, int(trendPart.Seconds())*(trendParts-i))
		}
		return "ARRAY[" + strings.Join(counts, ", ") + "]"
	}
	return strings.NewReplacer("{trend newest}", trend("at"), "{trend table}", trend(g.since), "{masked}", sqlMasked("text"), "{at}", g.since, "{table}", g.table,
		"{step}", g.step, "{reason}", g.reason, "{text}", g.text, "{compared}", g.compared, "{limit}", g.limit).Replace(sqlGroupLetters)
}

func (d *inboxLetters) groupLetters(ctx context.Context, filter Filter, limit int) (LetterGroups, error) {
	args, err := d.filterArgs(ctx, filter, 0)
	if err != nil {
		return LetterGroups{}, fmt.Errorf("operator: group dead letters: %w", sqlschema.Explain(err))
	}
	return d.readGroups(ctx, d.sql.group.forState(filter.State), append(args, comparedLetters, min(limit, MaxList)))
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
	return d.readGroups(ctx, statement, append(args, comparedLetters, min(limit, MaxList)))
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
