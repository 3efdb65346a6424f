package rehearsal

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/testing/pgservertest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/outbox"
)

// sqlMissing are orders that are not in the inbox of who should have handled them.
const sqlMissing = `
SELECT key FROM orders.customer_order o WHERE NOT EXISTS (SELECT FROM payments.inbox i WHERE i.scope = 'tenant' AND i.key = o.key)`

// sqlGhosts are steps of orders that do not exist.
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
	_, schema := pgtest.Schema(t, sqlCreateOrder, sqlCreateEffect)
	d := &disaster{
		server: server, orders: newShop(t, server.URL(), "orders"), payments: newShop(t, server.URL(), "payments"),
		ledger: &shop{name: "ledger", schema: schema, pool: pgtest.Pool(t, pgtest.URL())},
		queues: newBroker("payments", "ledger"),
	}
	d.payments.bank = &bank{asks: true}
	d.relay = d.orders.relay(t, d.queues)
	d.work(t)
	d.strike(t)
	d.checkRecovered(t)
	d.checkReplayed(t)
	d.checkRepeated(t)
}

// A disaster is the loss of the database of orders and payments. The ledger has another database.
type disaster struct {
	server                   *pgservertest.Server
	orders, payments, ledger *shop
	queues                   *broker
	relay                    *relaying

	before    outbox.Stats // when all was published
	published int          // by then
}

// work does what the restore point will have.
func (d *disaster) work(t *testing.T) {
	t.Helper()
	d.orders.place(t, "a", 1, 0)
	d.relay.settled(t)
	d.payments.handle(t, d.queues, "a")
	d.ledger.handle(t, d.queues, "a")
	d.server.Backup(t)
	d.orders.place(t, "b", 1, 0)
	d.orders.place(t, "c", 1, 0)
	d.orders.place(t, "due", 1, time.Hour)
	d.orders.exec(t, sqlDue)
	awaitPublished(t, d.queues, "a b c due")
	d.orders.place(t, "late", 1, time.Hour)
	d.relay.settled(t)
	d.payments.handle(t, d.queues, "b")
	d.ledger.handle(t, d.queues, "b", "c", "due")
	d.queues.setAway(true)
	d.orders.place(t, "d", 1, 0)
	d.queues.awaitOffered(t) // read, handed to the broker, and not confirmed
	d.server.Mark(t, "cut")
}

// strike does what will be forgotten, and restores the database.
func (d *disaster) strike(t *testing.T) {
	t.Helper()
	d.payments.handle(t, d.queues, "c", "due")
	d.queues.setAway(false)
	d.orders.exec(t, sqlDue)
	d.orders.place(t, "e", 1, 0)
	d.orders.place(t, "f", 1, 0)
	d.before = d.relay.settled(t)
	awaitPublished(t, d.queues, "a b c d due e f late")
	d.payments.handle(t, d.queues, "d", "e", "late")
	d.ledger.handle(t, d.queues)
	_, d.published = d.queues.since(0)

	d.server.Crash()
	d.relay.stop()
	d.server.Restore(t, "cut")
}

// checkRecovered looks at what is there, and has it go on.
func (d *disaster) checkRecovered(t *testing.T) {
	t.Helper()
	// The data that had committed before the restore point is there, and nothing else.
	d.orders, d.payments = reopen(t, d.orders, d.server), reopen(t, d.payments, d.server)
	equal(t, "orders", d.orders.orders(t), "a b c d due late")
	equal(t, "effects of payments", d.payments.effects(t), "a b")
	equal(t, "delayed messages", d.orders.list(t, sqlListDelayed), "late")

	// The relay goes on from the cursor of then: the same message, under the same id. It is the
	// same cluster, so that nothing is published anew from the beginning.
	d.relay = d.orders.relay(t, d.queues)
	if after := d.relay.settled(t); after.Epoch < d.before.Epoch {
		t.Errorf("the epoch is %d, and was %d", after.Epoch, d.before.Epoch)
	}
	again, _ := d.queues.since(d.published)
	equal(t, "published again", keysOf(again), "d")
	d.orders.exec(t, sqlDue)
	awaitPublished(t, d.queues, "a b c d d due e f late late")
	if d.relay.warnings.heard("another cluster") {
		t.Errorf("the relay takes the cluster for another: %q", d.relay.warnings.said)
	}

	// The ledger absorbs what it has had. Payments does it for the first time, as far as its
	// database knows, and so asks the bank first; f is a ghost, which has waited in its queue.
	equal(t, "paid before the recovery", d.payments.bank.books(), "a b c d due e late")
	d.ledger.handle(t, d.queues)
	equal(t, "effects of the ledger", d.ledger.effects(t), "a b c d due e f late")
	d.payments.handle(t, d.queues)
	equal(t, "effects of payments", d.payments.effects(t), "a b d f late")
}

// checkReplayed has the log replayed.
func (d *disaster) checkReplayed(t *testing.T) {
	t.Helper()
	// c is missing: it was published before, and its ack has outlived the inbox's row; so is the
	// delayed one that was due. What the log has kept puts it right, and says that it is a
	// replay: the bank is asked in any case.
	d.payments.bank.asks = false
	equal(t, "missing", d.payments.list(t, sqlMissing), "c due")
	equal(t, "ghosts", d.payments.list(t, sqlGhosts), "f")
	d.orders.replay(t)
	d.relay.settled(t)
	d.payments.handle(t, d.queues)
	d.ledger.handle(t, d.queues)
	equal(t, "missing after the replay", d.payments.list(t, sqlMissing), "")
	equal(t, "effects of payments", d.payments.effects(t), "a b c d due f late")
	equal(t, "effects of the ledger", d.ledger.effects(t), "a b c d due e f late")
	equal(t, "paid", d.payments.bank.books(), "a b c d due e f late")
	all, _ := d.queues.since(0)
	checkIDs(t, all)
}

// checkRepeated has clients repeat their requests.
func (d *disaster) checkRepeated(t *testing.T) {
	t.Helper()
	// A client that repeats its request makes a ghost real. With other contents it is a message
	// of another under a key that was used, wherever the ghost has been.
	d.payments.bank.asks = true
	d.orders.place(t, "e", 1, 0)
	d.orders.place(t, "f", 2, 0)
	d.relay.settled(t)
	d.payments.handle(t, d.queues)
	d.ledger.handle(t, d.queues)
	equal(t, "ghosts after the requests were repeated", d.payments.list(t, sqlGhosts), "")
	equal(t, "effects of payments", d.payments.effects(t), "a b c d due e f late")
	equal(t, "effects of the ledger", d.ledger.effects(t), "a b c d due e f late")
	equal(t, "paid in the end", d.payments.bank.books(), "a b c d due e f late")
	equal(t, "dead letters of payments", d.payments.list(t, sqlListDead), "key-reused:f")
	equal(t, "dead letters of the ledger", d.ledger.list(t, sqlListDead), "key-reused:f")
}

// reopen gives s a pool on the server as it is now.
func reopen(t *testing.T, s *shop, server *pgservertest.Server) *shop {
	t.Helper()
	return &shop{name: s.name, schema: s.schema, pool: pgtest.Pool(t, server.URL()), bank: s.bank, lease: s.lease}
}

// awaitPublished waits until the broker has been handed keys.
func awaitPublished(t *testing.T, b *broker, keys string) {
	t.Helper()
	await(t, "published "+keys, func() bool {
		all, _ := b.since(0)
		return keysOf(all) == keys
	})
}
