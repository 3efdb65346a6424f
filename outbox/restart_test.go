package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience is how long a test waits for what must happen. A busy machine has taken more than half a minute.
const patience = time.Minute

// eventually polls until done says so.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// start runs r until the test ends or stop is called, which waits for its end.
func start(t *testing.T, r *Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func (f *fixture) epoch(t *testing.T) (epoch int64) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), "SELECT epoch FROM "+f.schema+".outbox_relay").Scan(&epoch); err != nil {
		t.Fatal(err)
	}
	return epoch
}

// burn uses n ids of transactions up, without a trace in the WAL, and returns
// the last.
func (f *fixture) burn(t *testing.T, n int) (last uint64) {
	t.Helper()
	batch := &pgx.Batch{}
	for range n {
		batch.Queue("BEGIN")
		batch.Queue("SELECT pg_current_xact_id()::text::bigint").QueryRow(func(row pgx.Row) error { return row.Scan(&last) })
		batch.Queue("ROLLBACK")
	}
	if err := f.pool.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	return last
}

// A server that comes back from a crash gives ids of transactions out again
// whose end had not reached the disk. A relay that has seen the first ones end
// must not take the second ones for them.
func TestACrashOfTheServerHidesNoMessage(t *testing.T) {
	t.Parallel()
	server := privateServer(t, "wal_writer_delay=10s", "autovacuum=off", "wal_level=minimal", "max_wal_senders=0") // nothing writes ids into the WAL
	f := server.fixture(t)
	r := f.relay(t, RelayOptions{Lease: time.Hour, PollMax: 10 * time.Millisecond}) // it stays the active one
	r.signals.passed.Enable()
	start(t, r)
	f.write(t, msg("a", "before"))
	eventually(t, "publish before the crash, and note it", func() bool { return len(f.broker.payloads()) == 1 && f.stats(t, r) == counts{} })
	burnt := f.burn(t, 500)
	r.signals.passed.Enable() // afresh
	for range 3 {
		r.signals.passed.Wait(t) // it has read a snapshot behind them
	}
	server.Crash()
	server.Start(t)
	var xid uint64
	eventually(t, "write after the crash", func() bool {
		return pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
			if err := f.writer.Write(t.Context(), tx, msg("b", "after")); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid)
		}) == nil
	})
	if xid > burnt {
		t.Fatalf("the server did not give an id out again: %d after %d", xid, burnt)
	}
	eventually(t, "publish after the crash", func() bool { return len(f.broker.firsts()) == 2 })
}
