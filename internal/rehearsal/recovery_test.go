package rehearsal

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/pgservertest"
	"github.com/sagamill/sagamill/internal/pgtest"
)

// sqlMissing are orders that are not in the inbox of who should have handled them.
const sqlMissing = `
SELECT key FROM orders.customer_order o WHERE NOT EXISTS (SELECT FROM payments.inbox i WHERE i.scope = 'tenant' AND i.key = o.key)`

// sqlGhosts are steps of orders that nobody has placed.
const sqlGhosts = `
SELECT key FROM payments.inbox i WHERE NOT EXISTS (SELECT FROM orders.customer_order o WHERE o.key = i.key)`

const (
	sqlDue         = "UPDATE {schema}.outbox_held SET due_at = clock_timestamp()"
	sqlListDead    = "SELECT reason || ':' || key FROM {schema}.parked WHERE state = 'dead'"
	sqlListDelayed = "SELECT key FROM {schema}.outbox_held WHERE state = 'delayed'"
)

// checkIDs checks that each key was published under one id.
func checkIDs(t *testing.T, published []string) {
	t.Helper()
	ids := map[string]string{}
	for _, p := range published {
		key, id, _ := strings.Cut(p, " ")
		if ids[key] != "" && ids[key] != id {
			t.Errorf("%s has two ids: %s, %s", key, ids[key], id)
		}
		ids[key] = id
	}
}

// keysOf returns the keys among published, in order.
func keysOf(published []string) string {
	var keys []string
	for _, p := range published {
		key, _, _ := strings.Cut(p, " ")
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// Orders and payments are services of one database, which is set back; the ledger's is not,
// nor is the bank where payments pays, which can only be asked what it has done.
// The orders are placed, published and handled on this side or that of the restore point:
//
//	      placed   published   handled by payments   by the ledger
//	a     before   before      before                before, and all that before the base backup
//	b     before   before      before                before
//	c     before   before      after                 before
//	d     before   after       after                 after
//	due   before   before      after                 before, and delayed, but due before the restore point
//	late  before   after       after                 after, for it was delayed
//	e     after    after       after                 after
//	f     after    after       after the recovery    after
func TestRecoveryToAPointInTime(t *testing.T) {
	t.Parallel()
	server := pgservertest.NewArchiving(t)
	orders, payments := newShop(t, server.URL(), "orders"), newShop(t, server.URL(), "payments")
	_, schema := pgtest.Schema(t, sqlCreateOrder, sqlCreateEffect)
	payments.bank = &bank{asks: true}
	ledger := &shop{name: "ledger", schema: schema, pool: pgtest.Pool(t, pgtest.URL())}
	queues := newBroker("payments", "ledger")
	relay := orders.relay(t, queues)

	orders.place(t, "a", 1, 0)
	relay.settled(t)
	payments.handle(t, queues, "a")
	ledger.handle(t, queues, "a")
	server.Backup(t)
	orders.place(t, "b", 1, 0)
	orders.place(t, "c", 1, 0)
	orders.place(t, "due", 1, time.Hour)
	orders.exec(t, sqlDue)
	awaitPublished(t, queues, "a b c due")
	orders.place(t, "late", 1, time.Hour)
	relay.settled(t)
	payments.handle(t, queues, "b")
	ledger.handle(t, queues, "b", "c", "due")
	queues.setAway(true)
	orders.place(t, "d", 1, 0)
	queues.awaitOffered(t) // read, handed to the broker, and not confirmed
	server.Mark(t, "cut")

	payments.handle(t, queues, "c", "due")
	queues.setAway(false)
	orders.exec(t, sqlDue)
	orders.place(t, "e", 1, 0)
	orders.place(t, "f", 1, 0)
	before := relay.settled(t)
	awaitPublished(t, queues, "a b c d due e f late")
	payments.handle(t, queues, "d", "e", "late")
	ledger.handle(t, queues)
	_, n := queues.since(0)

	server.Crash()
	relay.stop()
	server.Restore(t, "cut")

	// What had committed before the restore point is there, and nothing else.
	orders, payments = reopen(t, orders, server), reopen(t, payments, server)
	equal(t, "orders", orders.orders(t), "a b c d due late")
	equal(t, "effects of payments", payments.effects(t), "a b")
	equal(t, "delayed messages", orders.list(t, sqlListDelayed), "late")

	// The relay goes on from the cursor of then: the same message, under the same id. It is the
	// same cluster, so that nothing is published anew from the beginning.
	relay = orders.relay(t, queues)
	if after := relay.settled(t); after.Epoch < before.Epoch {
		t.Errorf("the epoch is %d, and was %d", after.Epoch, before.Epoch)
	}
	again, _ := queues.since(n)
	equal(t, "published again", keysOf(again), "d")
	orders.exec(t, sqlDue)
	awaitPublished(t, queues, "a b c d d due e f late late")
	if relay.warnings.heard("another cluster") {
		t.Errorf("the relay takes the cluster for another: %q", relay.warnings.said)
	}

	// The ledger absorbs what it has had. Payments does it for the first time, as far as its
	// database knows, and so asks the bank first; f is a ghost, which has waited in its queue.
	equal(t, "paid before the recovery", payments.bank.books(), "a b c d due e late")
	ledger.handle(t, queues)
	equal(t, "effects of the ledger", ledger.effects(t), "a b c d due e f late")
	payments.handle(t, queues)
	equal(t, "effects of payments", payments.effects(t), "a b d f late")

	// c is missing: it was published before, and its ack has outlived the inbox's row; so is the
	// delayed one that was due. What the log has kept puts it right, and says that it is a
	// replay: the bank is asked in any case.
	payments.bank.asks = false
	equal(t, "missing", payments.list(t, sqlMissing), "c due")
	equal(t, "ghosts", payments.list(t, sqlGhosts), "f")
	orders.replay(t)
	relay.settled(t)
	payments.handle(t, queues)
	ledger.handle(t, queues)
	equal(t, "missing after the replay", payments.list(t, sqlMissing), "")
	equal(t, "effects of payments", payments.effects(t), "a b c d due f late")
	equal(t, "effects of the ledger", ledger.effects(t), "a b c d due e f late")
	equal(t, "paid", payments.bank.books(), "a b c d due e f late")
	all, _ := queues.since(0)
	checkIDs(t, all)

	// A client that repeats its request makes a ghost real. With other contents it is a message
	// of another under a key that was used, wherever the ghost has been.
	payments.bank.asks = true
	orders.place(t, "e", 1, 0)
	orders.place(t, "f", 2, 0)
	relay.settled(t)
	payments.handle(t, queues)
	ledger.handle(t, queues)
	equal(t, "ghosts after the requests were repeated", payments.list(t, sqlGhosts), "")
	equal(t, "effects of payments", payments.effects(t), "a b c d due e f late")
	equal(t, "effects of the ledger", ledger.effects(t), "a b c d due e f late")
	equal(t, "paid in the end", payments.bank.books(), "a b c d due e f late")
	equal(t, "dead letters of payments", payments.list(t, sqlListDead), "key-reused:f")
	equal(t, "dead letters of the ledger", ledger.list(t, sqlListDead), "key-reused:f")
}

// reopen gives s a pool on the server as it is now.
func reopen(t *testing.T, s *shop, server *pgservertest.Server) *shop {
	t.Helper()
	return &shop{name: s.name, schema: s.schema, pool: pgtest.Pool(t, server.URL()), bank: s.bank}
}

// awaitPublished waits until the broker has been handed keys.
func awaitPublished(t *testing.T, b *broker, keys string) {
	t.Helper()
	await(t, "published "+keys, func() bool {
		all, _ := b.since(0)
		return keysOf(all) == keys
	})
}
