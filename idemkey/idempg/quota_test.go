package idempg

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
	"github.com/sagamill/sagamill/internal/sqlschema"
)

// claimWithin claims a key of scope and applies the quota, as Begin does.
func (f *fixture) claimWithin(t *testing.T, scope, key string, quota int) error {
	t.Helper()
	c := idemkeytest.Claim(key, "a")
	c.ID.Scope = scope
	conn, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	e := &execution{s: f.Store, conn: conn, id: c.ID, token: newToken()}
	if mine, err := f.insert(t.Context(), e, &c); err != nil || !mine {
		t.Fatalf("claim %s of %s = %t, %v", key, scope, mine, err)
	}
	return f.keepQuota(t.Context(), e, quota)
}

// A scope at its quota gets no further record, whatever the others have. What
// has expired does not count.
func TestQuota(t *testing.T) {
	t.Parallel()
	const quota = 3
	f := newFixture(t, Options{})
	for i := range quota {
		if err := f.claimWithin(t, "a", fmt.Sprint(i), quota); err != nil {
			t.Fatalf("claim %d: %v", i, err)
		}
	}
	refused := func() {
		t.Helper()
		if err := f.claimWithin(t, "a", "more", quota); !errors.Is(err, idemkey.ErrCapacity) || !strings.Contains(err.Error(), "Options.MaxPerScope") {
			t.Errorf("claim over the quota: %v, want ErrCapacity that names it", err)
		}
	}
	refused()
	refused() // the first left nothing behind
	if err := f.claimWithin(t, "b", "more", quota); err != nil {
		t.Errorf("claim of another scope: %v", err)
	}
	f.exec(t, "UPDATE "+f.schema+".idempotency_key SET expires_at = clock_timestamp() - interval '1 h' WHERE scope = 'a' AND key IN ('0', '1')")
	refused() // their owners' leases run
	f.exec(t, "UPDATE "+f.schema+".idempotency_key SET lease_until = clock_timestamp() WHERE scope = 'a' AND key = '0'")
	if err := f.claimWithin(t, "a", "more", quota); err != nil {
		t.Errorf("claim in the place of an expired one: %v", err)
	}
}

// The quota never counts a whole scope: it reads a range of the primary key, up
// to the first record too many.
func TestQuotaPlan(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.exec(t, "INSERT INTO "+f.schema+`.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
		SELECT 'http', 'tenant-' || n % 2, 'k' || n, 2, 'a', 'test', gen_random_uuid(), 1, now(), now() + interval '1 d' FROM generate_series(1, 20000) AS n`)
	f.exec(t, "VACUUM ANALYZE "+f.schema+".idempotency_key")
	rows, err := f.pool.Query(t.Context(), "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF, SUMMARY OFF) "+sqlschema.Bind(f.schema, sqlFindOverQuota), "http", "tenant-1", 100)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	if !strings.Contains(plan, "Index Scan using idempotency_key_pkey") || !strings.Contains(plan, "rows=101 ") && !strings.Contains(plan, "rows=101.00 ") {
		t.Errorf("plan, want 101 rows of the primary key:\n%s", plan)
	}
}
