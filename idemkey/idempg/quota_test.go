package idempg

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// A scope at its quota gets no further record, whatever the others have, while
// what is stored is still replayed. What has expired does not count.
func TestMaxPerScope(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]ClaimMode{"leased": ClaimLeased, "inline": ClaimInline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{MaxPerScope: 3, MaxInFlight: 1, ClaimMode: mode})
			claim := func(scope, key string) idemkey.Claim {
				c := idemkeytest.Claim(key, "a")
				c.ID.Scope = scope
				return c
			}
			keep := func(scope, key string) {
				t.Helper()
				if err := f.begin(t, claim(scope, key)).Commit(t.Context(), idemkey.Response{Status: 200}); err != nil {
					t.Fatalf("Commit: %v", err)
				}
			}
			refused := func() {
				t.Helper()
				_, err := f.Begin(t.Context(), claim("a", "more"))
				if !errors.Is(err, idemkey.ErrCapacity) || !strings.Contains(err.Error(), "Options.MaxPerScope") {
					t.Errorf("claim over the quota: %v, want ErrCapacity that names it", err)
				}
			}
			for i := range 3 {
				keep("a", fmt.Sprint(i))
			}
			refused()
			refused() // the first left nothing behind, and took no place
			f.kind(t, claim("a", "1"), idemkey.KindReplay)
			keep("b", "more")
			f.exec(t, "UPDATE "+f.schema+".idempotency_key SET expires_at = clock_timestamp() - interval '1 h' WHERE scope = 'a' AND key = '0'")
			keep("a", "0") // anew
			refused()
			f.exec(t, "UPDATE "+f.schema+".idempotency_key SET expires_at = clock_timestamp() - interval '1 h' WHERE scope = 'a' AND key = '0'")
			keep("a", "more")
		})
	}
}

// A running request counts for as long as its lease.
func TestMaxPerScopeRunning(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{MaxPerScope: 1})
	c := idemkeytest.Claim("k", "a")
	owner := f.begin(t, c)
	f.expire(t, c.ID)
	if _, err := f.Begin(t.Context(), idemkeytest.Claim("more", "a")); !errors.Is(err, idemkey.ErrCapacity) {
		t.Errorf("claim beside a running one: %v, want ErrCapacity", err)
	}
	f.lapse(t, c.ID)
	f.begin(t, idemkeytest.Claim("more", "a"))
	owner.endExecution()
}

// The quota never counts a whole scope: it reads a range of the primary key, up
// to the first record too many.
func TestQuotaPlan(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.exec(t, "INSERT INTO "+f.schema+`.idempotency_key (namespace, scope, key, state, fp, fp_alg, token, attempt, lease_until, expires_at)
		SELECT 'http', 'tenant-' || n % 2, 'k' || n, 2, 'a', 'test', gen_random_uuid(), 1, now(), now() + interval '1 d' FROM generate_series(1, 20000) AS n`)
	f.exec(t, "VACUUM ANALYZE "+f.schema+".idempotency_key")
	rows, err := f.pool.Query(t.Context(), "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF, SUMMARY OFF) "+f.q.findOverQuota, "http", "tenant-1", 100)
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
