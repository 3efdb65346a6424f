package saga

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
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
	put(t, pool, schema, instanceAt{key: "k", status: StatusRunning, due: &later, reason: "panic", tries: 1}, instanceAt{key: "l", status: StatusRunning, quiet: 90, reason: "step flight: dead letter, parked"})
	want.Running, want.Held, want.OldestHeld = 12, 2, 90*time.Minute
	check("one that fails and one that is held", want)
	if _, err := ReadStats(t.Context(), pool, "no such"); err == nil {
		t.Error("ReadStats of a schema with a blank = nil error")
	}

	// No more than so many of each status are read. Overdue does not count.
	rows, _ := pool.Query(t.Context(), o.sql.readStats, 3)
	var status string
	var count int
	var age int64
	counts := map[string]int{}
	if _, err := pgx.ForEachRow(rows, []any{&status, &count, &age}, func() error {
		counts[status] = count
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"running": 3, "compensating": 2, "paused": 2, "stuck": 3, "held": 2, "due": 0}, counts); diff != "" {
		t.Errorf("with a limit of 3 (-want +got):\n%s", diff)
	}
}

// The one that moved least recently is found among many, though only the rows of few are read: whether it began first or
// last, and whether or not those that began first move all the time.
func TestStatsFindTheOldestMove(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		quiet string // an expression of g, which counts from 1 to 1000 in the order in which they began, one in a minute
		want  time.Duration
	}{
		"the first":                {"1000 - g", 999 * time.Minute},
		"one in the middle":        {"CASE WHEN g = 500 THEN 450 ELSE 0 END", 450 * time.Minute},
		"the last":                 {"CASE WHEN g = 1000 THEN 0.5 ELSE 0 END", 30 * time.Second},
		"one with a clock of 100s": {"CASE WHEN g = 150 THEN 1000 - g + 1.6 WHEN g <= 100 THEN 851 ELSE 0 END", 851*time.Minute + 36*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, schema := pgtest.Schema(t)
			_, err := pool.Exec(t.Context(), "INSERT INTO "+schema+`.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, updated_at)
				SELECT 'tenant', g::text, '', (lpad(to_hex((extract(epoch FROM clock_timestamp() - (1000 - g) * interval '1 minute') * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(g), 12, '0'))::uuid,
					gen_random_uuid(), 1, 'trip', '', clock_timestamp(), '{}', '{}', (ARRAY['running', 'compensating'])[1 + g % 2], clock_timestamp() - (`+tt.quiet+`) * interval '1 minute'
				FROM generate_series(1, 1000) AS g`)
			if err != nil {
				t.Fatal(err)
			}
			s, err := ReadStats(t.Context(), pool, schema)
			if err != nil || s.Running+s.Compensating != 1000 || (s.Silent-tt.want).Abs() > 10*time.Second {
				t.Errorf("ReadStats = %d live, silent for %s, %v; want 1000 and %s", s.Running+s.Compensating, s.Silent, err, tt.want)
			}
		})
	}
}
