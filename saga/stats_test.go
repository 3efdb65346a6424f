package saga

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/inproc"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// An instanceAt is an instance as a test puts it there: its status, for how many minutes nothing has happened to it,
// and for how many it has been due.
type instanceAt struct {
	key    string
	status Status
	quiet  int
	due    *int
}

func put(t *testing.T, pool *pgxpool.Pool, schema string, all ...instanceAt) {
	t.Helper()
	for _, i := range all {
		_, err := pool.Exec(t.Context(), "INSERT INTO "+schema+`.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, due_at, ended_at)
			SELECT 'tenant', $1, path, gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', clock_timestamp(), '{}', '{}', $2,
				clock_timestamp() - $3 * interval '1 min', clock_timestamp() - $4 * interval '1 min', CASE WHEN $2 IN ('completed', 'compensated') THEN clock_timestamp() END
			FROM unnest(ARRAY['', '1']) AS path`, i.key, i.status, i.quiet, i.due)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Live instances are counted by status, with nested ones and without ended ones. Stats also say how long the
// oldest wait for a reply is.
func TestStats(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	plan := Must(Define("other", 1, Step[struct{}]{Name: "step", Do: Tell("topic", func(*struct{}) struct{} { return struct{}{} })}))
	o, err := NewOrchestrator(pool, inproc.New(nil).Subscriber("orchestrator"), []Plan{plan}, &Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	near := cmp.Comparer(func(a, b time.Duration) bool { return (a == 0) == (b == 0) && (a-b).Abs() < 30*time.Second })
	check := func(when string, want Stats) {
		t.Helper()
		got, err := o.Stats(t.Context())
		if diff := cmp.Diff(want, got, near); err != nil || diff != "" {
			t.Errorf("%s: error %v, stats (-want +got):\n%s", when, err, diff)
		}
	}
	check("nothing there", Stats{})
	later, ago, longAgo := -60, 5, 10
	put(t, pool, schema, instanceAt{"a", StatusRunning, 400, &later}, instanceAt{"b", StatusRunning, 0, nil}, instanceAt{"c", StatusCompensating, 300, nil},
		instanceAt{"d", StatusPaused, 200, nil}, instanceAt{"e", StatusCompleted, 500, nil}, instanceAt{"f", StatusCompensated, 500, nil})
	check("nothing due or stuck", Stats{Running: 4, Compensating: 2, Paused: 2})
	put(t, pool, schema, instanceAt{"g", StatusStuck, 60, nil}, instanceAt{"h", StatusStuck, 120, nil}, instanceAt{"i", StatusRunning, 0, &ago}, instanceAt{"j", StatusRunning, 0, &longAgo})
	check("stuck and due", Stats{Running: 8, Compensating: 2, Paused: 2, Stuck: 4, OldestStuck: 2 * time.Hour, Overdue: 10 * time.Minute})

	// No more than so many are read.
	var counts [4]int
	var oldest, due int64
	if err := pool.QueryRow(t.Context(), o.sql.readStats, 3).Scan(&counts[0], &counts[1], &counts[2], &counts[3], &oldest, &due); err != nil {
		t.Fatal(err)
	}
	if n := counts[0] + counts[1] + counts[2] + counts[3]; n != 3 || due == 0 {
		t.Errorf("with a limit of 3 %d instances are counted, and one is overdue for %d µs", n, due)
	}
}
