package consumer

import (
	"strings"
	"testing"
	"time"

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

// A message that a person holds back with due_at = infinity stops no other retry, with each plan, and is counted.
func TestAMessageThatIsNeverDueStopsNoRetry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := pgtest.DirectConfig(t)
	for _, scan := range []string{"enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"} {
		config.ConnConfig.RuntimeParams[scan] = "off"
	}
	f.consumersPool(t, config)
	c := f.consumer(t, Options{ParkedPoll: time.Minute}, f.step(scripted, nil))
	handle(t, c, newMessage("pay", "held", payment{12}), newMessage("pay", "due", payment{12}))
	f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity' WHERE key = 'held'")
	for _, due := range []string{"now", "-infinity"} {
		f.exec(t, "UPDATE {schema}.parked SET due_at = $1::text::timestamptz WHERE key = 'due'", due)
		if wait, err := c.retrier.nextDue(t.Context()); err != nil || wait != 0 {
			t.Errorf("beside a message that is due at %s: wait %s, %v; want 0", due, wait, err)
		}
	}
	f.exec(t, "UPDATE {schema}.parked SET due_at = '9999-12-31' WHERE key = 'due'")
	if wait, err := c.retrier.nextDue(t.Context()); err != nil || wait != time.Minute {
		t.Errorf("with a message that is due in some thousand years: wait %s, %v; want the option ParkedPoll", wait, err)
	}
	f.exec(t, "UPDATE {schema}.parked SET due_at = 'infinity'")
	if wait, err := c.retrier.nextDue(t.Context()); err != nil || wait != time.Minute {
		t.Errorf("with nothing that is ever due: wait %s, %v; want the option ParkedPoll", wait, err)
	}
	if stats, err := c.Stats(t.Context()); err != nil || stats.Retrying != 2 || stats.Overdue != 0 {
		t.Errorf("stats %+v, %v; want two retrying messages and none overdue", stats, err)
	}
}
