//go:build failpoints

package outbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

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
	var refusing bool // where the test has made that table
	_ = b.db.QueryRow(ctx, "SELECT yes FROM "+b.schema+".refusing").Scan(&refusing)
	for i, p := range batch {
		if refusing && strings.HasPrefix(p.Message.Metadata[HeaderKey], "k1") {
			results[i] = ErrRefused
			continue
		}
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
	log := Log(os.Getenv("SAGAMILL_TEST_LOG"))
	r, err := NewRelay(pool, tableBroker{pool, schema}, &RelayOptions{Schema: schema, Log: log, Batch: crashWindow, Window: crashWindow, Lease: time.Second})
	if err != nil {
		panic(err)
	}
	_ = r.Run(ctx) // until the failpoint
}

// crashWindow is how many messages a killed relay may publish again.
const crashWindow = 10

// killed runs a relay in a process of its own until it is killed at point, for
// the second time that it comes there.
func (f *fixture) killed(t *testing.T, log Log, point string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), "SAGAMILL_TEST_RELAY="+f.schema, "SAGAMILL_TEST_LOG="+string(log), "SAGAMILL_FAILPOINTS="+point)
	if err := child.Run(); ctx.Err() != nil || child.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the relay ended with %v, not by the failpoint", err)
	}
}

func TestKilledRelayLosesNothingAndRepeatsAtMostAWindow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		log        Log
		point      string
		duplicates int
	}{
		{LogAppend, "outbox/before-take-over=kill", 0},
		{LogAppend, "outbox/after-read=kill:2", crashWindow},
		{LogAppend, "outbox/after-publish=kill:2", crashWindow},
		{LogAppend, "outbox/after-checkpoint=kill:2", crashWindow},
		{LogTable, "outbox/table-after-publish=kill:2", crashWindow},
		{LogTable, "outbox/table-before-commit=kill:2", crashWindow},
		{LogTable, "outbox/table-after-commit=kill:2", 0},
	} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec(t, "CREATE TABLE {schema}.delivered (position bigserial, message_id text, key text)")
			const messages = 25
			for i := range messages {
				f.write(t, msg(fmt.Sprint("k", i), ""))
			}
			f.killed(t, tt.log, tt.point)
			r, err := NewRelay(f.pool, tableBroker{f.pool, f.schema}, &RelayOptions{Schema: f.schema, Log: tt.log})
			if err != nil {
				t.Fatal(err)
			}
			// The dead relay's lease has to end, or its locks, when its server process notices.
			for deadline := time.Now().Add(30 * time.Second); f.stats(t, r).Stored > 0; {
				if mustSettle(t, r); time.Now().After(deadline) {
					t.Fatal("not drained")
				}
			}
			var total, distinct int
			err = f.pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT message_id) FROM "+f.schema+".delivered").Scan(&total, &distinct)
			if err != nil || distinct != messages || total > messages+tt.duplicates {
				t.Errorf("%d deliveries of %d messages, %v; want %d and up to %d again", total, distinct, err, messages, tt.duplicates)
			}
		})
	}
}

// What is refused and what waits behind it is kept when the relay dies around
// the transaction that notes it.
func TestARelayKilledOverARefusalKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"outbox/before-commit=kill", "outbox/after-checkpoint=kill"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec(t, "CREATE TABLE {schema}.delivered (position bigserial, message_id text, key text)")
			f.exec(t, "CREATE TABLE {schema}.refusing AS SELECT true AS yes")
			for i := range 6 {
				m := msg(fmt.Sprint("k", i%2), fmt.Sprint(i))
				m.N = fmt.Sprint(i)
				f.write(t, m)
			}
			f.killed(t, LogAppend, point)
			f.exec(t, "UPDATE {schema}.refusing SET yes = false")
			r, err := NewRelay(f.pool, tableBroker{f.pool, f.schema}, &RelayOptions{Schema: f.schema, RetryBase: time.Millisecond, RetryCap: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(30 * time.Second); f.stats(t, r) != (counts{}); {
				if mustSettle(t, r); time.Now().After(deadline) {
					t.Fatalf("not drained: %+v", f.stats(t, r))
				}
			}
			rows, _ := f.pool.Query(t.Context(), "SELECT key FROM "+f.schema+".delivered GROUP BY key ORDER BY min(position)")
			keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			last := map[string]string{}
			for _, key := range keys {
				of, n, _ := strings.Cut(key, "#")
				if n <= last[of] {
					t.Errorf("%s came after #%s: %q", key, last[of], keys)
				}
				last[of] = n
			}
			if len(keys) != 6 {
				t.Errorf("delivered %q, want six", keys)
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
