package consumer

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A look for parked messages that are due reads those, and not all that wait.
func TestWhatIsDueIsFoundByTheIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.consumer(t, Options{}, f.step(f.numbers, nil))
	fill := "INSERT INTO " + f.schema + `.parked (state, kind, scope, key, step, n, topic, message_id, header_names, header_values, payload, reason, error, attempts, due_at)
		SELECT 'retrying', 'action', 'tenant', g::text, 'process-payment', '', 'topic', '', '{}', '{}', '', 'failed', '', 1, clock_timestamp() + interval '1 day'
		FROM generate_series(1, 5000) AS g`
	for _, sql := range []string{fill, "ANALYZE " + f.schema + ".parked"} {
		if _, err := f.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	rows, _ := pgtest.Pool(t, pgtest.Direct()).Query(t.Context(), "EXPLAIN (COSTS OFF) "+c.executor.sql.takeParked, pgx.QueryExecModeDescribeExec,
		c.retrier.stepNames, 1, 1000, c.retrier.ordered, c.retrier.topicsOf(c.retrier.stepNames))
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if plan := strings.Join(lines, "\n"); err != nil || !strings.Contains(plan, "Index Cond: (due_at <=") {
		t.Errorf("error %v, plan:\n%s", err, plan)
	}
}
