// Package audit compares the causes that a shop has written with the effects of its steps.
// Each saga has each of its effects once. The money is the same everywhere. The effects of
// a key come in the order of its sequence.
package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/sqlschema"
)

// MaxExamples is how many violations of a kind are described.
const MaxExamples = 5

// sqlCompareEffects counts, for one scope and step, the sagas without an effect, the
// effects beyond the first of a saga, and those without a saga.
const sqlCompareEffects = `
WITH c AS (SELECT key, seq, amount FROM {schema}.cause WHERE scope = $1),
e AS (SELECT key, seq, count(*) AS n FROM {schema}.effect WHERE scope = $1 AND step = $2 GROUP BY key, seq)
SELECT
	(SELECT count(*) FROM c LEFT JOIN e USING (key, seq) WHERE e.n IS NULL),
	(SELECT coalesce(sum(n - 1), 0) FROM e),
	(SELECT count(*) FROM e LEFT JOIN c USING (key, seq) WHERE c.amount IS NULL),
	(SELECT coalesce(sum(amount), 0) FROM c)
		- (SELECT coalesce(sum(amount), 0) FROM {schema}.effect WHERE scope = $1 AND step = $2),
	(SELECT count(*) FROM c)`

// sqlDescribeEffects describes the first violations that sqlCompareEffects counts.
const sqlDescribeEffects = `
SELECT format('%s %s-%s has %s effects of step %s', $1::text, key, seq, coalesce(n, 0), $2::text)
FROM (SELECT key, seq FROM {schema}.cause WHERE scope = $1) c
FULL JOIN (SELECT key, seq, count(*) AS n FROM {schema}.effect WHERE scope = $1 AND step = $2 GROUP BY key, seq) e USING (key, seq)
WHERE n IS DISTINCT FROM 1 OR c.key IS NULL
ORDER BY key, seq LIMIT $3`

// sqlFindDisorder finds effects that came before the first effect of an earlier number of
// the same key. A repeated effect counts as doubled, not as disordered.
const sqlFindDisorder = `
WITH first AS (
	SELECT key, seq, min(id) AS id FROM {schema}.effect WHERE scope = $1 AND step = $2 GROUP BY key, seq
), ranked AS (
	SELECT key, seq, id, max(id) OVER (PARTITION BY key ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
	FROM first
)
SELECT format('step %s of %s-%s came before an earlier one of its key', $2::text, key, seq)
FROM ranked WHERE id < before ORDER BY id`

// Findings are what an audit has found.
type Findings struct {
	Sagas      int      // sagas written
	Lost       int      // effects that are missing
	Doubled    int      // effects beyond the first of a saga and a step
	Alien      int      // effects without a saga
	Disordered int      // effects ahead of an earlier number of their key
	Money      int64    // money not moved by a step, or moved twice, in cents
	Examples   []string // the first violations of each kind, described
}

// AddFindings adds the findings of another audit.
func (f *Findings) AddFindings(other Findings) {
	f.Sagas, f.Lost, f.Doubled, f.Alien = f.Sagas+other.Sagas, f.Lost+other.Lost, f.Doubled+other.Doubled, f.Alien+other.Alien
	f.Disordered, f.Money = f.Disordered+other.Disordered, f.Money+other.Money
	f.Examples = append(f.Examples, other.Examples...)
}

// CheckSchema audits the tables cause and effect of a schema. steps are those of each scope, and
// ordered are the scopes whose keys have an order.
func CheckSchema(ctx context.Context, db *pgxpool.Pool, schema string, steps map[string][]string, ordered ...string) (Findings, error) {
	var all Findings
	for _, scope := range slices.Sorted(maps.Keys(steps)) {
		var sagas int
		for _, step := range steps[scope] {
			found, err := checkStep(ctx, db, schema, scope, step, slices.Contains(ordered, scope))
			if err != nil {
				return all, fmt.Errorf("audit: step %s of %s: %w", step, scope, err)
			}
			sagas, found.Sagas = found.Sagas, 0
			all.AddFindings(found)
		}
		all.Sagas += sagas
	}
	return all, nil
}

func checkStep(ctx context.Context, db *pgxpool.Pool, schema, scope, step string, ordered bool) (f Findings, err error) {
	row := db.QueryRow(ctx, sqlschema.Bind(schema, sqlCompareEffects), scope, step)
	if err := row.Scan(&f.Lost, &f.Doubled, &f.Alien, &f.Money, &f.Sagas); err != nil {
		return f, err
	}
	f.Money = max(f.Money, -f.Money) // amounts of two steps must not cancel each other
	if f.Lost+f.Doubled+f.Alien > 0 {
		if f.Examples, err = queryTexts(ctx, db, sqlschema.Bind(schema, sqlDescribeEffects), scope, step, MaxExamples); err != nil {
			return f, err
		}
	}
	if !ordered {
		return f, nil
	}
	disordered, err := queryTexts(ctx, db, sqlschema.Bind(schema, sqlFindDisorder), scope, step)
	f.Disordered = len(disordered)
	f.Examples = append(f.Examples, disordered[:min(MaxExamples, len(disordered))]...)
	return f, err
}

func queryTexts(ctx context.Context, db *pgxpool.Pool, sql string, args ...any) ([]string, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
