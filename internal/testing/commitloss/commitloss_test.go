package commitloss_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/commitloss"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// A test that judges a run by its losses relies on the counts.
func TestItCountsWhatItLoses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		loss                   commitloss.Loss
		commits, replies, rows int
	}{
		"nothing":    {commitloss.Nothing, 0, 0, 1},
		"the reply":  {commitloss.Reply, 0, 1, 1},
		"the commit": {commitloss.Commit, 1, 0, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, schema := pgtest.Schema(t)
			if _, err := direct.Exec(t.Context(), "CREATE TABLE "+schema+".kept (n integer)"); err != nil {
				t.Fatal(err)
			}
			proxy, pool := pgtest.NewProxy(t)
			proxy.Lose(tt.loss)
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "INSERT INTO "+schema+".kept VALUES (1)")
				return err
			})
			if lost := tt.loss != commitloss.Nothing; lost != (err != nil) {
				t.Errorf("commit = %v", err)
			}
			rows := 0
			if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM "+schema+".kept").Scan(&rows); err != nil {
				t.Fatal(err)
			}
			if proxy.Commits() != tt.commits || proxy.Replies() != tt.replies || rows != tt.rows {
				t.Errorf("%d commits and %d replies are lost, and %d rows there; want %d, %d, %d", proxy.Commits(), proxy.Replies(), rows, tt.commits, tt.replies, tt.rows)
			}
		})
	}
}
