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
// for how many it has been due, and a reason.
type instanceAt struct {
	key    string
	status Status
	quiet  int
	due    *int
	reason string
	tries  int
}

func put(t *testing.T, pool *pgxpool.Pool, schema string, all ...instanceAt) {
	t.Helper()
	for _, i := range all {
		_, err := pool.Exec(t.Context(), "INSERT INTO "+schema+`.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at, due_at, ended_at, reason, tries)
			SELECT 'tenant', $1, path, gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', clock_timestamp(), '{}', '{}', $2,
				clock_timestamp() - $3 * interval '1 min', clock_timestamp() - $4 * interval '1 min', CASE WHEN $2 IN ('completed', 'compensated') THEN clock_timestamp() END, $5, $6
			FROM unnest(ARRAY['', '1']) AS path`, i.key, i.status, i.quiet, i.due, i.reason, i.tries)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Live instances are counted by status, with nested ones and without ended ones. Stats also say how long the
// oldest waits are.
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
		got, err = ReadStats(t.Context(), pool, schema)
		if diff := cmp.Diff(want, got, near); err != nil || diff != "" {
			t.Errorf("%s, ReadStats: error %v, stats (-want +got):\n%s", when, err, diff)
		}
	}
	check("nothing there", Stats{})
	later, ago, longAgo := -60, 5, 10
	put(t, pool, schema, instanceAt{key: "a", status: StatusRunning, quiet: 400, due: &later}, instanceAt{key: "b", status: StatusRunning}, instanceAt{key: "c", status: StatusCompensating, quiet: 300, reason: "cancelled"},
		instanceAt{key: "d", status: StatusPaused, quiet: 200}, instanceAt{key: "e", status: StatusCompleted, quiet: 500}, instanceAt{key: "f", status: StatusCompensated, quiet: 500})
	want := Stats{Running: 4, Compensating: 2, Paused: 2, OldestPaused: 200 * time.Minute, Silent: 400 * time.Minute}
	check("nothing due or stuck", want)
	put(t, pool, schema, instanceAt{key: "g", status: StatusStuck, quiet: 60}, instanceAt{key: "h", status: StatusStuck, quiet: 120}, instanceAt{key: "i", status: StatusRunning, due: &ago}, instanceAt{key: "j", status: StatusRunning, due: &longAgo})
	want.Running, want.Stuck, want.OldestStuck, want.Overdue = 8, 4, 2*time.Hour, 10*time.Minute
	check("stuck and due", want)
	put(t, pool, schema, instanceAt{key: "k", status: StatusRunning, due: &later, reason: "panic", tries: 1}, instanceAt{key: "l", status: StatusRunning, reason: "step flight: dead letter, parked"})
	want.Running, want.Held = 12, 2
	check("one that fails and one that is held", want)
	if _, err := ReadStats(t.Context(), pool, "no such"); err == nil {
		t.Error("ReadStats of a schema with a blank = nil error")
	}

	// No more than so many are read.
	var counts [5]int
	var ages [4]int64
	if err := pool.QueryRow(t.Context(), o.sql.readStats, 3).Scan(&counts[0], &counts[1], &counts[2], &counts[3], &counts[4], &ages[0], &ages[1], &ages[2], &ages[3]); err != nil {
		t.Fatal(err)
	}
	if n := counts[0] + counts[1] + counts[2] + counts[3]; n != 3 || ages[3] == 0 {
		t.Errorf("with a limit of 3 %d instances are counted, and one is overdue for %d µs", n, ages[3])
	}
}
