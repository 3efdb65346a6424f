package operator

import (
	"strings"
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// The status says that row-level security hides rows from it, whatever table that is, instead of counting none.
func TestAStatusThatRowsAreHiddenFrom(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.NewSchema(t)
	outsider := pgtest.NewOutsider(t, pool, schema)
	for _, table := range []string{"schema_version", "outbox_1", "outbox_held", "outbox_relay", "parked", "saga", "idempotency_key"} {
		outsider.Hide(t, table)
		all, err := ReadOverview(t.Context(), outsider.Pool, &OverviewOptions{Schemas: []string{schema}})
		if err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		if got := all[0]; !strings.HasSuffix(got.Hidden, "."+table) || len(got.Problems()) == 0 || got.Problems()[0].Kind != ProblemHidden {
			t.Errorf("%s: hidden %q, problems %v", table, got.Hidden, got.Problems())
		}
		outsider.Show(t, table)
	}
}

// A redrive of a dead letter whose step is hidden does nothing and says so. It would take the step for one without a row.
func TestARedriveThatRowsAreHiddenFrom(t *testing.T) {
	t.Parallel()
	f := newLetterFixture(t)
	f.manyDead(t, 3)
	outsider := pgtest.NewOutsider(t, f.pool, f.schema)
	letters, err := NewDeadLetters(outsider.Pool, Inbox, &Options{Schema: f.schema})
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"inbox", "parked"} {
		outsider.Hide(t, table)
		if done, err := letters.Redrive(t.Context(), Filter{}, &RedriveOptions{}); err == nil || !strings.Contains(err.Error(), "row-level security") {
			t.Errorf("%s: Redrive = %v, %v", table, done, err)
		}
		outsider.Show(t, table)
	}
}
