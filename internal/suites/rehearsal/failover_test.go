package rehearsal

import (
	"testing"

	"github.com/sagamill/sagamill/internal/testing/pgservertest"
)

const (
	// sqlInserted is how far the WAL goes, commits that do not wait for the disk included.
	sqlInserted = `SELECT pg_current_wal_insert_lsn()::text`

	// sqlReplayed says how far a standby has replayed it.
	sqlReplayed = `SELECT coalesce(max(pg_wal_lsn_diff(replay_lsn, $1::pg_lsn)), -1) >= 0 FROM pg_stat_replication WHERE state = 'streaming'`
)

// An asynchronous standby takes over that has not got the last commits. Order a is published
// and on the standby, d is on the standby and not published, and e is published and never
// reaches the standby.
func TestFailoverToAnAsynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := pgservertest.New(t)
	orders, payments := newShop(t, primary.URL(), "orders"), newShop(t, primary.URL(), "payments")
	payments.bank = &bank{asks: true}
	standby := primary.Standby(t)
	queues := newBroker("payments")
	relay := orders.relay(t, queues)
	orders.place(t, "a", 1, 0)
	before := relay.settled(t)
	payments.handle(t, queues, "a")
	queues.setAway(true)
	orders.place(t, "d", 1, 0)
	queues.awaitOffered(t)
	inserted := orders.list(t, sqlInserted)
	await(t, "the standby has caught up", func() (caughtUp bool) {
		err := orders.pool.QueryRow(t.Context(), sqlReplayed, inserted).Scan(&caughtUp)
		return err == nil && caughtUp
	})
	standby.Crash() // it gets nothing more
	queues.setAway(false)
	orders.place(t, "e", 1, 0)
	awaitPublished(t, queues, "a d e")
	payments.handle(t, queues, "d")
	primary.Crash()
	relay.stop()
	standby.Start(t)
	standby.Promote(t)

	orders, payments = reopen(t, orders, standby), reopen(t, payments, standby)
	equal(t, "orders", orders.orders(t), "a d")
	relay = orders.relay(t, queues)
	awaitPublished(t, queues, "a d d e")
	if after := relay.settled(t); after.Epoch <= before.Epoch {
		t.Errorf("the epoch is %d, and was %d", after.Epoch, before.Epoch)
	}
	if relay.warnings.heard("another cluster") {
		t.Errorf("the relay takes the cluster for another: %q", relay.warnings.said)
	}
	payments.handle(t, queues)
	equal(t, "effects of payments", payments.effects(t), "a d e")
	equal(t, "paid", payments.bank.books(), "a d e")
	equal(t, "missing", payments.list(t, sqlMissing), "")
	equal(t, "ghosts", payments.list(t, sqlGhosts), "e")
	all, _ := queues.since(0)
	checkIDs(t, all)
}
