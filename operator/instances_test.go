package operator

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

func TestInstanceStatementsArePreparable(t *testing.T) {
	t.Parallel()
	_, schema := pgtest.Schema(t)
	pgtest.PrepareAll(t, newInstanceQueries(schema))
}

func TestNewInstancesIsChecked(t *testing.T) {
	t.Parallel()
	pool, _ := pgtest.Schema(t)
	if _, err := NewInstances(nil, nil); err == nil {
		t.Error("NewInstances without a pool = nil error")
	}
	if _, err := NewInstances(pool, &Options{Schema: "no such"}); err == nil {
		t.Error("NewInstances of a schema with a blank = nil error")
	}
}

// An operator's process that is suspended in a decision does not block the instance for ever.
func TestAnOperatorsDecisionIsLimited(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	n, err := NewInstances(pool, &Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	var limit, isolation string
	err = n.commitChange(t.Context(), func(tx pgx.Tx) error {
		if err := tx.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&isolation)
	})
	if err != nil || limit != "30s" || isolation != "read committed" {
		t.Errorf("a decision is ended after %q without a statement, isolation %q, %v", limit, isolation, err)
	}
}
