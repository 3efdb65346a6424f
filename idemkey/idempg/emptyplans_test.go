package idempg

import (
	"testing"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/plantest"
)

// growRecords adds n records that are in progress, failed, completed and unknown each, and n more of one scope. Of the expired ones there
// are ten.
func growRecords(t *testing.T, s *plantest.Schema, n int) {
	t.Helper()
	s.Exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
		SELECT 'http', CASE kind WHEN 'full' THEN kind ELSE concat('s', i) END, concat(kind, i), state, 'fp', 'a',
			'00000000-0000-0000-0000-000000000001', 1, clock_timestamp() + lease::interval,
			CASE expires WHEN 'never' THEN 'infinity' ELSE clock_timestamp() + expires::interval END
		FROM (SELECT (SELECT count(*) FROM {schema}.idempotency_key) + i AS i FROM generate_series(1, $1::int) i) numbered,
			(VALUES ('live', 1, '1 hour', '1 hour'), ('failed', 2, '-1 s', '1 hour'), ('done', 3, '-1 s', '1 hour'),
				('old', 3, '-2 days', '-1 day'), ('unknown', 5, '-1 s', 'never'), ('full', 3, '-1 s', '1 hour')) k (kind, state, lease, expires)
		WHERE kind <> 'old' OR i <= 10`, n)
}

// The store's statements are planned once, for whatever arguments, and perhaps while the table is empty. Such a plan must
// be as good for a full table: until it is analyzed, each request would otherwise cost a walk past all records.
func TestPlansOfAnEmptyTableAreGoodForAFullOne(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const work, token = 20, "00000000-0000-0000-0000-000000000001"
	record := func(kind string, more ...any) []any { return append([]any{"http", "s7", kind + "7"}, more...) }
	completed := []any{3, 200, []byte("h"), []byte("b"), "", nil}
	(&plantest.Suite{
		Queries:  func(schema string) []any { return []any{newQueries(schema)} },
		Settings: map[string]string{pg.PlanByIndex: "sweepRecords listUnknown"},
		OnlyNew: map[string]string{
			"finds records by their primary key, or unknown ones by their index, with each request": `readRecord takeOver findAbandoned lockRecord completeRecord commitRecord
				failRecord forgetRecord lockPrior forgetPrior readState readHolder lockState readUnwritten findOverQuota settle countUnknown endLostOwner keepUnknown`,
		},
		Excepted: map[string]string{
			"inserts: the unique index finds a conflict": "insertClaim keepInline commitInline",
			"reads no table": "findHidden",
		},
		Tables: []string{"idempotency_key"},
		Work:   work,
		Grow:   growRecords,
		Arguments: func(*testing.T, *plantest.Schema) map[string][]any {
			return map[string][]any{
				"readRecord":     record("live"),
				"takeOver":       record("failed", token, []byte("fp"), "a", token, 2, 1000, 1000, false),
				"findAbandoned":  record("live", token),
				"lockRecord":     append([]any{1000, 1000, 1000}, record("live", token)...),
				"completeRecord": record("live", append([]any{token}, completed...)...),
				"commitRecord":   record("live", append(append([]any{token}, completed...), "")...),
				"failRecord":     record("live", token, 500, 2, nil),
				"forgetRecord":   record("live", token),
				"lockPrior":      record("done", token, 3),
				"forgetPrior":    record("done", token, 3),
				"readState":      record("done", token),
				"readHolder":     record("done", token),
				"lockState":      record("done", token),
				"keepUnknown":    record("unknown", token),
				"endLostOwner":   record("live", token, 0),
				"readUnwritten":  record("done", token),
				"findOverQuota":  {"http", "full", work},
				"countUnknown":   {"http", "full", work},
				"listUnknown":    {"http", "s7", "unknown7", work},
				"settle":         record("unknown", token, 2, nil, nil, nil, "", 1000),
				"sweepRecords":   {work},
			}
		},
	}).Run(t)
}

// A store whose sessions have planned the sweep while there were no records reads few of the many that are stored later.
func TestASweepOfAnEmptyTableReadsFewRecords(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	const rounds, many = 12, 10_000 // a session plans a statement for each of five executions
	s := plantest.New(t)
	own, read := plantest.Sessions(t, s.Pool, s.Name)
	store, err := New(own, &Options{Schema: s.Name})
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "VACUUM {schema}.idempotency_key")
	fill := func(n int, scope, expires string) {
		t.Helper()
		s.Exec(t, `INSERT INTO {schema}.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
			SELECT 'http', $1, concat('k', i), 3, 'fp', 'a', gen_random_uuid(), 1, clock_timestamp(), clock_timestamp() + $2::interval
			FROM generate_series(1, $3::int) i`, scope, expires, n)
	}
	sweep := func() {
		t.Helper()
		fill(1, "old", "-1 s")
		if swept, err := store.Sweep(t.Context(), 10); err != nil || swept != 1 {
			t.Fatalf("swept %d, %v; want 1", swept, err)
		}
	}
	for range rounds {
		sweep()
	}
	fill(many, "live", "1 hour")
	sweep()
	if read := read("idempotency_key"); read > many/2 {
		t.Errorf("the sweeps have read %d records, and %d were stored", read, many)
	}
}
