//go:build failpoints

package outbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/pgtest"
)

// A tableBroker is a Publisher whose queue is a table: what it confirmed
// survives the process.
type tableBroker struct {
	db     *pgxpool.Pool
	schema string
}

func (b tableBroker) PublishBatch(ctx context.Context, batch []Publication) []error {
	results := make([]error, len(batch))
	for i, p := range batch {
		_, results[i] = b.db.Exec(ctx, "INSERT INTO "+b.schema+".delivered (message_id, key) VALUES ($1, $2)", p.Message.UUID, p.Message.Metadata[HeaderKey])
	}
	return results
}

// TestMain runs a relay instead of the tests when it is told to.
func TestMain(m *testing.M) {
	if schema := os.Getenv("SAGAMILL_TEST_RELAY"); schema != "" {
		runRelay(schema)
	}
	os.Exit(m.Run())
}

func runRelay(schema string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, pgtest.URL())
	if err != nil {
		panic(err)
	}
	r, err := NewRelay(pool, tableBroker{pool, schema}, &RelayOptions{Schema: schema, Batch: 10})
	if err != nil {
		panic(err)
	}
	_ = r.Run(ctx) // until the failpoint
}

func TestKilledRelayLosesNothingAndRepeatsAtMostABatch(t *testing.T) {
	t.Parallel()
	for point, duplicates := range map[string]int{"outbox/after-publish": 10, "outbox/before-commit": 10, "outbox/after-commit": 0} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec(t, "CREATE TABLE {schema}.delivered (position bigserial, message_id text, key text)")
			const messages = 25
			for i := range messages {
				f.write(t, msg(fmt.Sprint("k", i), ""))
			}
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), "SAGAMILL_TEST_RELAY="+f.schema, "SAGAMILL_FAILPOINTS="+point+"=kill:2")
			if err := child.Run(); child.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the relay ended with %v, not by the failpoint", err)
			}
			r, err := NewRelay(f.pool, tableBroker{f.pool, f.schema}, &RelayOptions{Schema: f.schema})
			if err != nil {
				t.Fatal(err)
			}
			// The dead relay's locks last until its server process notices.
			for f.stats(t, r).Stored > 0 {
				pass(t, r)
			}
			var total, distinct int
			err = f.pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT message_id) FROM "+f.schema+".delivered").Scan(&total, &distinct)
			if err != nil || distinct != messages || total != messages+duplicates {
				t.Errorf("%d deliveries of %d messages, %v; want %d of %d", total, distinct, err, messages+duplicates, messages)
			}
		})
	}
}

// What the broker took stays published when the database fails at the commit.
func TestAFailedCommitRepeatsTheBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, msg("k", "1"))
	r := f.relay(t, RelayOptions{})
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		batch, err := r.take(t.Context(), tx)
		if err != nil {
			return err
		}
		if _, _, err := r.settle(t.Context(), tx, batch, r.publish(t.Context(), batch)); err != nil {
			return err
		}
		return errRollBack
	})
	if err == nil {
		t.Fatal("the pass committed")
	}
	pass(t, r)
	if got := len(f.broker.accepted); got != 2 || f.broker.accepted[0].Message.UUID != f.broker.accepted[1].Message.UUID {
		t.Errorf("published %d times, want the same message twice", got)
	}
}
