package consumer

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
)

// The answer to a COMMIT is lost, or the COMMIT itself is. Whichever it was,
// the step takes effect once, and the delivery is acked only then.
func TestALostCommitReplyIsLookedUp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		loss    pgtest.Loss
		entries int32
		stored  stored // after the delivery
	}{
		"committed":     {pgtest.LoseReply, 1, stored{Row: "done 1 0"}},
		"not committed": {pgtest.LoseCommit, 2, stored{Row: "retrying 1 0", Parked: "retrying action failed 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy, pool := pgtest.NewProxy(t)
			var entries atomic.Int32
			paid := f.effect("paid")
			step := f.step(func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
				if entries.Add(1) == 1 {
					proxy.Lose(tt.loss)
				}
				return paid(ctx, tx, in, emit)
			}, nil)
			c := f.consumerOn(t, pool, Options{}, step)
			msg := act("k")
			a, _ := readAttempt(c, "pay", msg)
			// The first try meets the loss, and so does every COMMIT until the
			// connection is whole again.
			var err error
			for range 3 {
				err = c.executor.executeAttempt(t.Context(), a)
				proxy.Lose(pgtest.LoseNothing)
				if err == nil {
					break
				}
			}
			if err != nil {
				t.Fatalf("handle: %v", err)
			}
			compareStored(t, tt.stored, stored{Row: f.row(t), Parked: f.parked(t)})
			handle(t, c, act("k"))
			runParkedOnce(t, c)
			if got := f.effects(t); got != "paid k 1" || entries.Load() != tt.entries {
				t.Errorf("effects %q after %d entries, want one effect and %d entries", got, entries.Load(), tt.entries)
			}
			if got := f.row(t); !strings.HasPrefix(got, "done") {
				t.Errorf("row %q in the end", got)
			}
		})
	}
}
