package rehearsal

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/testing/pgservertest"
)

// The settings of the URL that bound how long a server which hangs holds up those who are
// connected to it, or try to be.
var hostSettings = []string{"connect_timeout=2", "pool_ping_timeout=2s", "pool_max_conns=16"}

// The primary is lost in full swing, or hangs, and its synchronous standby takes over. Relay,
// consumer and customers find it by their URL, whichever server it names first, and nothing
// that was acknowledged is lost or doubled.
func TestFailoverToASynchronousStandby(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		standbyFirst bool
		strike       func(t *testing.T, l *load, primary, standby *pgservertest.Server)
	}{
		"killed": {true, func(t *testing.T, _ *load, primary, standby *pgservertest.Server) {
			primary.Kill(t)
			standby.Promote(t)
		}},
		"killed while the standby hangs": {false, func(t *testing.T, l *load, primary, standby *pgservertest.Server) {
			before := l.failed.Load()
			standby.Freeze(t)
			await(t, "a request is given up", func() bool { return l.failed.Load() > before })
			primary.Kill(t)
			standby.Thaw()
			standby.Promote(t)
		}},
		"frozen": {false, func(t *testing.T, l *load, primary, standby *pgservertest.Server) {
			before := l.failed.Load()
			primary.Freeze(t)
			await(t, "a request is given up", func() bool { return l.failed.Load() > before })
			standby.Promote(t)
			l.awaitAcknowledged(t, l.acknowledged.Load()+customers) // while the old primary hangs
			primary.Kill(t)                                         // or it could go on where it was
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := pgservertest.New(t)
			standby := primary.SynchronousStandby(t)
			hosts := []*pgservertest.Server{primary, standby}
			if tt.standbyFirst {
				slices.Reverse(hosts)
			}
			pool, err := pgxpool.New(t.Context(), pgservertest.URLOfAll(hosts, hostSettings...))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			l := newLoad(t, primary.URL(), pool)
			l.start(t)
			l.awaitAcknowledged(t, inFullSwing)
			tt.strike(t, l, primary, standby)
			l.check(t, standby)
		})
	}
}

// The standby is away. What waits for it is neither published nor acked. A wait that its
// client gives up leaves the commit visible, and the standby without it: the relay publishes
// it, but no message is acked for it, and a failover takes both back.
func TestACommitWhoseWaitForTheStandbyIsGivenUp(t *testing.T) {
	t.Parallel()
	primary := pgservertest.New(t)
	standby := primary.SynchronousStandby(t)
	orders, payments := newShop(t, primary.URL(), "orders"), newShop(t, primary.URL(), "payments")
	queues := newBroker("payments")
	orders.lease = time.Minute // which the relay cannot renew while the standby is away
	relay := orders.relay(t, queues)
	orders.place(t, "a", 1, 0)
	awaitPublished(t, queues, "a")
	payments.handle(t, queues, "a")
	// Pages with dead rows are pruned when they are read. That writes WAL, and the commit of whoever read them would
	// wait for the standby whether it has locked a row or not.
	if _, err := payments.pool.Exec(t.Context(), "VACUUM"); err != nil {
		t.Fatal(err)
	}
	standby.Crash()

	giveUp, placing := untilWaits(t, primary, func(ctx context.Context) error { return orders.tryPlace(ctx, "e", 1, 0) })
	equal(t, "orders", orders.orders(t), "a")
	giveUp()
	if err := <-placing; err == nil {
		t.Error("an order is acknowledged that is not on the standby")
	}
	awaitPublished(t, queues, "a e")
	relay.stop()
	equal(t, "orders after the wait was given up", orders.orders(t), "a e")

	e := queues.take(t, "payments", "e")[0]
	giveUp, handling := untilWaits(t, primary, func(ctx context.Context) error { return payments.tryHandle(t, ctx, e) })
	giveUp()
	if err := <-handling; err == nil {
		t.Error("a message is acked whose effect is not on the standby")
	}
	await(t, "the effect is visible", func() bool { return payments.effects(t) == "a e" })
	_, again := untilWaits(t, primary, func(ctx context.Context) error { return payments.tryHandle(t, ctx, e) })
	primary.Kill(t)
	if err := <-again; err == nil {
		t.Error("a redelivered message is acked whose effect is not on the standby")
	}

	standby.Start(t)
	standby.Promote(t)
	orders, payments = reopen(t, orders, standby), reopen(t, payments, standby)
	equal(t, "orders after the failover", orders.orders(t), "a")
	equal(t, "effects after the failover", payments.effects(t), "a")
}

// untilWaits starts do and returns when a commit waits for the standby, or do has ended. It
// ends with the test, or when the caller gives up.
func untilWaits(t *testing.T, primary *pgservertest.Server, do func(context.Context) error) (giveUp func(), outcome <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	await(t, "a commit waits", func() bool { return len(done) > 0 || primary.CommitWaits(t) })
	return cancel, done
}
