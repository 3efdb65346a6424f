package consumer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// poolIn returns a pool whose statements go in mode.
func poolIn(t *testing.T, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), pgtest.ModeConfig(t, mode))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// mixed ends as its message's key says.
func mixed(f *fixture) Handler[payment] {
	paid := f.effect("paid")
	return func(ctx context.Context, tx pgx.Tx, in Message[payment], emit Emit) error {
		in.Queue("INSERT INTO "+f.schema+".effect (what) VALUES ($1)", "queued "+in.Key)
		emit(outbox.Message{Topic: "paid", Step: "ship"})
		switch in.Key {
		case "k1":
			in.Queue("SELECT 1/($1::integer - 1)", in.Body.Amount)
		case "k2":
			return errors.New("no")
		case "k3":
			return errors.Join(paid(ctx, tx, in, emit), errors.New("no"))
		case "k4":
			return paid(ctx, tx, in, emit)
		}
		return nil
	}
}

// However pgx has been told to send statements, batches and parked messages come
// to the same: with handlers that use their transaction or not, that queue and
// emit, and fail before or while what they have queued is executed.
func TestExecModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.pool = poolIn(t, mode)
			step := f.step(mixed(f), f.effect("refunded"))
			step.MaxAttempts = 2
			c := f.consumer(t, Options{BatchTime: time.Minute}, step)
			compare := func(want stored) {
				t.Helper()
				want.Effects = "paid k4 1, queued k4, queued k0, queued k5, refunded k0 2"
				compareStored(t, want, stored{Row: f.rows(t), Parked: f.parked(t), Effects: f.effects(t)})
				if emitted := f.texts(t, "SELECT key FROM {schema}.outbox ORDER BY id"); !slices.Equal(emitted, []string{"k0", "k4", "k5"}) {
					t.Errorf("emitted for %q, want k0, k4 and k5", emitted)
				}
			}
			msgs := append(keyed(6), undo("k9"), undo("k0"), undo("k1"), act("k0"))
			if acked := settle(t, c, msgs...); len(acked) != len(msgs) {
				t.Errorf("acked %d messages, want %d", len(acked), len(msgs))
			}
			compare(stored{
				Row:    "k0 compensated 1, k1 retrying 1, k2 retrying 1, k3 retrying 1, k4 done 1, k5 done 1, k9 void 0",
				Parked: "retrying action failed 1; retrying action failed 1; retrying action failed 1; retrying compensation waits-for-action 0",
			})
			for runParkedOnce(t, c) > 0 {
			}
			compare(stored{
				Row:    "k0 compensated 1, k1 dead 2, k2 dead 2, k3 dead 2, k4 done 1, k5 done 1, k9 void 0",
				Parked: "dead action attempts-exhausted 2; dead action attempts-exhausted 2; dead action attempts-exhausted 2; dead compensation action-dead 0",
			})
		})
	}
}
