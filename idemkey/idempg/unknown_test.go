package idempg

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemkeytest"
)

// externalClaim returns a claim of a handler with effects outside of the database.
func externalClaim(key string) idemkey.Claim {
	c := idemkeytest.Claim(key, "a")
	c.External, c.MaxUnknown = true, 10
	return c
}

// A claim that fails after its INSERT leaves no record: its handler has not run, and nobody could decide about it.
func TestAClaimThatFailsLeavesNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	count := f.q.countUnknown
	f.q.countUnknown = strings.Replace(count, "count(*)", "1 / (count(*) - count(*))", 1)
	if _, err := f.Begin(t.Context(), externalClaim("k")); err == nil || !strings.Contains(err.Error(), "count unknown outcomes") {
		t.Errorf("Begin = %v", err)
	}
	f.q.countUnknown = count
	if d, err := f.Begin(t.Context(), externalClaim("k")); err != nil || d.Kind != idemkey.KindProceed || d.Attempt != 1 {
		t.Errorf("Begin after that = %v attempt %d, %v", d.Kind, d.Attempt, err)
	} else if err := d.Exec.Release(t.Context(), idemkey.Bound, 500); err != nil {
		t.Error(err)
	}
}

// The claim of a handler with external effects is durable even where the session's commits are not. Others are
// asynchronous.
func TestAnExternalClaimIsDurable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for external, want := range map[bool]string{true: "local", false: "off"} {
		var got string
		err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = off"); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), f.q.insertClaim, "n", "s", want, []byte("f"), "a", newToken(), 1000, 1000, external); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&got)
		})
		if err != nil || got != want {
			t.Errorf("external %t: synchronous_commit is %s, %v; want %s", external, got, err, want)
		}
	}
}
