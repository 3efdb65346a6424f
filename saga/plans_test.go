package saga

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// TestHousekeepingReadsWhatIsDue looks at how the server would find what the statements
// that run now and then are for, where they would otherwise read every instance. What is counted is read
// no further than to the limit.
func TestHousekeepingReadsWhatIsDue(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	fill := "INSERT INTO " + schema + `.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, due_at, ended_at)
		SELECT 'tenant', g::text, '', gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', clock_timestamp(), '{}', '{}',
			CASE WHEN ended THEN 'completed' ELSE 'running' END, clock_timestamp(),
			CASE WHEN NOT ended THEN clock_timestamp() + interval '1 day' END, CASE WHEN ended THEN clock_timestamp() END
		FROM (SELECT g, g % 10 > 0 AS ended FROM generate_series(1, 20000) AS g) AS made`
	for _, sql := range []string{fill, "ANALYZE " + schema + ".saga"} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	q, names, versions, hashes := newQueries(schema), []string{"trip"}, []int32{1}, []string{""}
	tests := map[string]struct {
		sql    string
		args   []any
		want   string // in the plan
		before string // is said first in the transaction
	}{
		"claim what is due":  {q.claimDue, []any{names, versions, 4, 1000, false, hashes}, "Index Cond: (due_at <=", ""},
		"next due":           {q.nextDue, []any{names, versions, hashes}, "Index Cond: ((due_at >", ""},
		"what ended is gone": {q.deleteEnded, []any{1000, removeBatch}, "Index Cond: (ended_at <", ""},
		"silent":             {q.listSilent, []any{names, versions, 1000, "", "", "", silentBatch, hashes}, "saga_live", ""},
		"what is live":       {q.readStats, []any{outbox.CountLimit}, "Limit -> Index Only Scan using saga_live", pg.ReadByIndex},
		"what moved first":   {q.readStats, []any{outbox.CountLimit}, "Limit -> Index Scan using saga_live", pg.ReadByIndex},
		"held":               {q.readStats, []any{outbox.CountLimit}, "Limit -> Index Only Scan using saga_held", pg.ReadByIndex},
		"held first":         {q.readStats, []any{outbox.CountLimit}, "Limit -> Index Scan using saga_held", pg.ReadByIndex},
		"overdue":            {q.readStats, []any{outbox.CountLimit}, "Limit -> Index Only Scan using saga_due_at", pg.ReadByIndex},
	}
	direct := pgtest.Pool(t, pgtest.Direct())
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			err := pgx.BeginFunc(t.Context(), direct, func(tx pgx.Tx) (err error) {
				if _, err := tx.Exec(t.Context(), tt.before); err != nil {
					return err
				}
				rows, _ := tx.Query(t.Context(), "EXPLAIN (COSTS OFF) "+tt.sql, append([]any{pgx.QueryExecModeDescribeExec}, tt.args...)...)
				lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
				return err
			})
			plan := strings.Join(lines, "\n")
			if err != nil || !strings.Contains(strings.Join(strings.Fields(plan), " "), tt.want) {
				t.Errorf("error %v; the plan has no %q:\n%s", err, tt.want, plan)
			}
		})
	}
}

// A reply for a version that is not known is tried for as long as others are.
func TestAReplyWaitsForItsVersion(t *testing.T) {
	t.Parallel()
	var all time.Duration
	for attempt := 1; attempt < replyAttempts; attempt++ {
		all += unknownWait(attempt)
	}
	if all < 12*time.Hour || unknownWait(1) > 2*time.Second {
		t.Errorf("it waits %s at first and %s in all, want at most 2 s and half a day", unknownWait(1), all)
	}
}

// An instance that a person holds back with due_at = infinity disturbs neither the timers nor the figures.
func TestAnInstanceThatIsNeverDueIsPassedOver(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	_, err := pool.Exec(t.Context(), "INSERT INTO "+schema+`.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, due_at)
		VALUES ('tenant', 'k', '', gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', clock_timestamp(), '{}', '{}', 'running', clock_timestamp(), 'infinity')`)
	if err != nil {
		t.Fatal(err)
	}
	var due *int64
	err = pool.QueryRow(t.Context(), newQueries(schema).nextDue, []string{"trip"}, []int32{1}, []string{""}).Scan(&due)
	if err != nil || due != nil {
		t.Errorf("the next is due in %v, %v; want none", due, err)
	}
	if stats, err := ReadStats(t.Context(), pool, schema); err != nil || stats.Running != 1 || stats.Overdue != 0 {
		t.Errorf("stats %+v, %v; want one running instance and none overdue", stats, err)
	}
}
