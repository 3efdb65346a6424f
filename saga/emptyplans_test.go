package saga

import (
	"fmt"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/sagarow"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/plantest"
	"github.com/sagamill/sagamill/outbox"
)

// growTables adds n instances of each kind, and n entries of the journal.
func growTables(t *testing.T, s *plantest.Schema, n int) {
	t.Helper()
	s.Exec(t, `INSERT INTO {schema}.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status, reason,
			tries, updated_at, due_at, ended_at)
		SELECT kind, concat('k', i), '', gen_random_uuid(), gen_random_uuid(), 1, 'trip', '', clock_timestamp(), '{}', '{}', status, reason,
			tries, clock_timestamp(), clock_timestamp() + due::interval, clock_timestamp() - ended::interval
		FROM (SELECT (SELECT count(*) FROM {schema}.saga) + i AS i FROM generate_series(1, $1::int) i) numbered,
			(VALUES ('live', 'running', '', 0, '1 day', null), ('due', 'running', '', 0, '-1 s', null), ('tried', 'running', '', 1, '-1 s', null),
				('stuck', 'stuck', 'r', 1, null, null), ('held', 'running', 'r', 0, null, null),
				('old', 'completed', '', 0, null, '60 days'), ('ended', 'completed', '', 0, null, '1 s'))
				k (kind, status, reason, tries, due, ended)`, n)
	s.Exec(t, `INSERT INTO {schema}.saga_journal (scope, key, path, verb, who, why)
		SELECT 'old', concat('k', i), '', 'skip', 'me', 'why'
		FROM (SELECT (SELECT count(*) FROM {schema}.saga_journal) + i AS i FROM generate_series(1, $1::int) i) numbered`, n)
}

// The statements of sagas are planned once, for whatever arguments, and perhaps while the tables are empty. Such a plan
// must be as good for full tables: until they are analyzed, each timer would otherwise cost a walk past all instances.
func TestPlansOfEmptyTablesAreGoodForFullOnes(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const work = 20
	var scopes, keys, paths []string
	for i := range work {
		scopes, keys, paths = append(scopes, "old"), append(keys, fmt.Sprint("k", i+1)), append(paths, `""`)
	}
	names, versions, hashes := []string{"trip"}, []int64{1}, []string{`""`}
	address := func(more ...any) []any { return append([]any{"live", "k7", ""}, more...) }
	(&plantest.Suite{
		Queries: func(schema string) []any { return []any{newQueries(schema), sagarow.NewStatements(schema)} },
		Settings: map[string]string{
			pg.PlanByIndex: "readStats claimDue nextDue postpone deleteEnded deleteJournal",
		},
		OnlyNew: map[string]string{
			"finds instances by their primary key, with each reply": `moveInstance lockInstances LockInstance LockRoot TryLockInstance
				TryLockRoot ReadInstance readNested`,
		},
		Excepted: map[string]string{
			"inserts: the unique index finds a conflict": "insertInstance addInstance register",
			"reads no table": "limitLock FindHidden",
			"is not planned": "unlimitLock",
			"reads all instances that have not ended yet": "listSilent liveVersions",
		},
		Tables: []string{"saga", "saga_journal"},
		Work:   work,
		Grow:   growTables,
		Arguments: func(*testing.T, *plantest.Schema) map[string][]any {
			return map[string][]any{
				"moveInstance":    address("running", "", "{}", "{}", 1000, false, 0),
				"lockInstances":   {scopes, keys, paths},
				"LockInstance":    address(),
				"LockRoot":        address(),
				"TryLockInstance": address(),
				"TryLockRoot":     address(),
				"ReadInstance":    address(),
				"claimDue":        {names, versions, work, 1000, false, hashes},
				"nextDue":         {names, versions, hashes},
				"postpone":        address("r", 1000, false, 0, 0),
				"readNested":      address(1000),
				"deleteEnded":     {1000 * outbox.CountLimit, work},
				"deleteJournal":   {scopes, keys, paths},
				"readStats":       {work / 2}, // of each of its three lists
			}
		},
	}).Run(t)
}

// An orchestrator whose sessions have planned their statements while there were no instances reads few of the many that are
// stored later, when it looks for timers that are due and for instances that ended long ago.
func TestAnOrchestratorOfAnEmptyTableReadsFewInstances(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const rounds, many = 12, 10_000 // a session plans a statement for each of five executions
	s := plantest.New(t)
	own, read := plantest.Sessions(t, s.Pool, s.Name)
	d := Must(Define("trip", 1, Step[struct{}]{Name: "book", Do: Remote[struct{}, any, any]("book", nil, nil), Deadline: time.Hour}))
	o, err := NewOrchestrator(own, nil, []Plan{d}, &Options{Schema: s.Name})
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "VACUUM {schema}.saga")
	// store stores instances that are due, and as many that ended, which is so long from now or ago.
	store := func(n int, kind, due, ended string) {
		t.Helper()
		s.Exec(t, `INSERT INTO {schema}.saga (scope, key, path, id, root, version, name, plan_hash, started_at, state, progress, status,
				updated_at, due_at, ended_at)
			SELECT $1 || status, concat('k', i), '', gen_random_uuid(), gen_random_uuid(), 1, 'trip', $2, clock_timestamp(), '{}', '{}', status,
				clock_timestamp(), CASE status WHEN 'running' THEN clock_timestamp() + $3::interval END,
				CASE status WHEN 'completed' THEN clock_timestamp() - $4::interval END
			FROM generate_series(1, $5::int) i, (VALUES ('running'), ('completed')) s (status)`, kind, o.plans.hashes[0], due, ended, n)
	}
	round := func(n int) {
		t.Helper()
		store(1, fmt.Sprint(n), "-1 s", "365 days")
		if due, err := o.timers.readNextDue(t.Context()); err != nil || due > 0 {
			t.Fatalf("the next instance is due in %s, %v; want at once", due, err)
		}
		claimed, err := o.timers.claimDueInstances(t.Context(), 2, false)
		if err != nil || len(claimed) != 1 {
			t.Fatalf("claimed %v, %v; want one", claimed, err)
		}
		o.timers.postponeTimer(claimed[0], errTimerKills)
		if removed, err := o.keeper.removeOneBatch(t.Context()); err != nil || removed != 1 {
			t.Fatalf("removed %d, %v; want 1", removed, err)
		}
	}
	for n := range rounds {
		round(n)
	}
	store(many, "many", "1 hour", "1 s")
	round(rounds)
	if read := read("saga"); read > many/2 {
		t.Errorf("the orchestrator has read %d instances, and %d were stored", read, 2*many)
	}
}
