package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/internal/pg"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/plantest"
)

// countReads makes r use sessions of its own. The result ends them, and returns how many held messages they have read.
func (f *fixture) countReads(t *testing.T, r *Relay) (heldRead func() int) {
	t.Helper()
	pool, read := plantest.Sessions(t, f.pool, f.schema)
	r.db, r.notifier = pg.NewOwn(pool), newNotifier(pool, f.schema, r.opts.Logger)
	return func() int { return read("outbox_held") }
}

// stored counts the messages of the log that are not published, as the stats of r do, and reads no held ones.
func (f *fixture) stored(t *testing.T, r *Relay) int {
	t.Helper()
	var s Stats
	err := r.db.InTx(t.Context(), pg.BeginLimitedRead(t.Context(), pgx.RepeatableRead), func(tx pgx.Tx) error {
		return r.countStored(t.Context(), tx, &s)
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.Stored
}

// However many messages wait for a stalled topic, a relay that takes over reads a few of them
// before it publishes what others have written, and walks past none.
func TestATakeOverReadsFewHeldMessages(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	f := privateServer(t).fixture(t) // a snapshot of another test would keep dead rows, which are read too
	const many = 50_000
	f.exec(t, "ALTER TABLE {schema}.outbox_held SET (autovacuum_enabled = off)")
	f.holdDeferred(t, many, "red", "-1 s")
	f.write(t, on("green", msg("g", "green")))
	b := &topicBroker{red: nack}
	r := f.stalling(t, b, RelayOptions{Lease: time.Second})
	heldRead := f.countReads(t, r)
	stop := start(t, r)
	eventually(t, "the green message is published", func() bool { return slices.Contains(b.published(), "green") })
	stop()
	if read := heldRead(); read > many/2 {
		t.Errorf("the relay has read %d of %d held messages", read, many)
	}
}

// So it is for a relay whose sessions have planned their statements while nearly nothing was held.
func TestARelayOfAnEmptyTableReadsFewHeldMessages(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	f := privateServer(t).fixture(t)
	const many, before = 50_000, 10 // a session plans a statement for each of five executions
	f.exec(t, "ALTER TABLE {schema}.outbox_held SET (autovacuum_enabled = off)")
	b := &topicBroker{red: nack}
	r := f.stalling(t, b, RelayOptions{})
	heldRead, counting := f.countReads(t, r), f.relay(t, RelayOptions{})
	stop := start(t, r)
	keepAside := func(n int) {
		t.Helper()
		for i := range n {
			key := fmt.Sprint("k", i)
			green := fmt.Sprint("green", n, i)
			f.write(t, on("red", msg(key, "red")), on("green", msg(key, "behind")), on("green", msg("g", green)))
			eventually(t, "a green message is published, and the others of its transaction are kept aside", func() bool {
				return slices.Contains(b.published(), green) && f.stored(t, counting) == 0
			})
		}
	}
	keepAside(before)
	f.holdDeferred(t, many, "red", "1 hour")
	keepAside(2)
	stop()
	if read := heldRead(); read > many/2 {
		t.Errorf("the relay has read %d held messages, and %d were stored meanwhile", read, many)
	}
}

// A look for held messages that fails, for whatever reason, leaves the log as it is.
func TestAFailingStepDoesNotStopTheLog(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*queries){
		"listRetries":  func(q *queries) { q.listRetries = "SELECT 1 / 0, $1::int, $2::int, $3::text[]" },
		"makeTopicDue": func(q *queries) { q.makeTopicDue = "SELECT 1 / 0, $1::text, $2::int" },
		"promotePage":  func(q *queries) { q.promotePage = "SELECT 1 / 0, $1::text, $2::int" },
		"moveDelayed":  func(q *queries) { q.moveDelayed = "SELECT 1 / 0, $1::int, $2::int" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			r := f.relay(t, RelayOptions{})
			spoil(&r.sql)
			start(t, r)
			for i := range 3 {
				f.write(t, msg("k", fmt.Sprint(i)))
				eventually(t, "the message is published", func() bool { return len(f.broker.payloads()) == i+1 })
			}
		})
	}
}

// A held message that a person has locked delays no other: neither the take-over, nor the looks
// for what is due, nor what is noted of others. It goes on when the lock goes.
func TestALockedHeldMessageHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.holdDeferred(t, 20, "t", "-1 s")
	f.holdDeferred(t, 1, "late", "1 hour") // a new tenure makes it due
	f.holdDeferred(t, 1, "behind", "1 hour")
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = 'infinity' WHERE id = (SELECT max(id) FROM {schema}.outbox_held)") // it waits behind none
	person, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = person.Rollback(context.WithoutCancel(t.Context())) }()
	const locked = 5
	if _, err := person.Exec(t.Context(), "SELECT FROM "+f.schema+`.outbox_held WHERE id IN (
		(SELECT id FROM `+f.schema+".outbox_held ORDER BY id LIMIT 3) UNION (SELECT id FROM "+f.schema+".outbox_held ORDER BY id DESC LIMIT 2)) FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	r := f.relay(t, RelayOptions{})
	r.limits.promote, r.limits.held = 10*time.Millisecond, 10*time.Millisecond
	start(t, r)
	f.write(t, msg("k", "other"))
	eventually(t, "all others are published", func() bool { return len(f.broker.firsts()) == 22-locked+1 && f.stats(t, r) == counts{Waiting: locked} })
	if err := person.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.exec(t, "UPDATE {schema}.outbox_held SET due_at = clock_timestamp() WHERE due_at < 'infinity'")
	eventually(t, "those are too", func() bool { return len(f.broker.firsts()) == 23 && f.stats(t, r) == counts{} })
}

// A stalled topic is not taken for reached because its messages are still on their way into
// outbox_held, behind a message that takes long.
func TestAStallOutlastsUnsettledMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.write(t, on("slow", msg("s", "slow")), on("red", msg("r", "red")))
	l := f.leader(t, RelayOptions{})
	l.prober.probing = &sync.WaitGroup{}
	round := func() {
		t.Helper()
		if _, err := l.doRound(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		l.prober.probing.Wait()
	}
	round() // nobody publishes: the page stays open
	ts := &l.topics
	probe := func() {
		t.Helper()
		ts.mu.Lock()
		ts.stateOf("red").probeAt = time.Now()
		ts.mu.Unlock()
		round()
	}
	ts.mu.Lock()
	ts.stallTopic(ts.stateOf("red"))
	ts.mu.Unlock()
	for range 3 {
		probe()
		if name, _ := ts.reachedTopic(); name != "" || !ts.isStalled("red") {
			t.Fatal("the topic counts as reached though its message is not settled, and no probe was sent")
		}
	}
	l.window.pages = nil
	probe()
	if name, _ := ts.reachedTopic(); name != "red" && ts.isStalled("red") { // the round may have ended the stall by then
		t.Error("the topic does not count as reached though nothing of it waits")
	}
}

// A call that is in the way of others is cut within maxPressedPatience, however often its topic has
// stalled. One that is not has its patience.
func TestACallInTheWayIsCutInTime(t *testing.T) {
	t.Parallel()
	for stalls := range 10 {
		for _, p := range []pressure{calm, pressed} {
			t.Run(fmt.Sprint(stalls, " ", p), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					ts := &topics{patience: stallPatience, changed: func() {}}
					ts.mu.Lock()
					ts.stateOf("red").stalls = stalls
					ts.mu.Unlock()
					ts.setPressure(p)
					call := ts.beginCall("red")
					ctx, cancel := context.WithCancelCause(t.Context())
					stop := ts.watchCall(call, cancel)
					defer stop()
					began := time.Now()
					for ctx.Err() == nil {
						ts.endCall(ts.beginCall("green"), []error{nil}, false)
						select {
						case <-ctx.Done():
						case <-time.After(20 * time.Millisecond):
						}
					}
					took, want := time.Since(began), min(maxPressedPatience, pressedLooks*stallPatience<<max(0, stalls-1))
					if p == calm {
						want = calmLooks * stallPatience << min(max(0, stalls-1), 8)
					}
					if took != want {
						t.Errorf("the call is cut after %s, want %s", took, want)
					}
				})
			})
		}
	}
}

// A message that a probe of an earlier tenure has published may be another one's by now: the next
// tenure does not remove it.
func TestAProbeOfAnEarlierTenureIsForgotten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.hold(t, 1, "delayed", "1 hour") // somebody has redriven it
	id := f.ids(t, "outbox_held", 1)[0]
	r := f.relay(t, RelayOptions{})
	r.topics.mu.Lock()
	r.topics.stallTopic(r.topics.stateOf("t"))
	r.topics.mu.Unlock()
	r.topics.noteProbe("t", id, &row{ID: id, Topic: "t"}, true)
	mustSettle(t, r)
	if got := f.stats(t, r); got != (counts{Delayed: 1}) {
		t.Errorf("there are %+v, want the message", got)
	}
}

// What a relay has left of its own lease is no other relay's, and a tenure without a lease ends
// and says why.
func TestARelayKnowsItsOwnLease(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.relay(t, RelayOptions{Lease: time.Hour})
	if _, err := (lease{&r.core}).takeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	tenure, err := lease{&r.core}.takeOver(t.Context())
	if err != nil {
		t.Fatalf("taking over from itself: %v", err)
	}
	if _, err := (lease{&f.relay(t, RelayOptions{}).core}).takeOver(t.Context()); !errors.Is(err, errStandby) {
		t.Errorf("another relay gets %v, want an errStandby", err)
	}
	tenure.until = time.Now()
	if err := r.leadTenure(t.Context(), t.Context(), tenure); !errors.Is(err, errExpired) {
		t.Errorf("a tenure without a lease ends with %v, want an errExpired", err)
	}
}

// A lane forgets of blocked keys what the messages in flight say themselves.
func TestALaneForgetsBlockedKeys(t *testing.T) {
	t.Parallel()
	r := newFixture(t).relay(t, RelayOptions{})
	r.limits.keys = 10
	var settled settledPages
	l := newLane(&r.core, &settled, nil, nil)
	for key := range uint64(20) {
		l.blocked[key] = block{head: 1, through: 1 + key/10}
	}
	settled.noteSettled(1, 5) // pages up to 5 were read without
	settled.noteSettled(4, 9)
	if l.forgetKnownKeys(); len(l.blocked) != 20 {
		t.Errorf("%d keys are left while messages are in flight that need them", len(l.blocked))
	}
	settled.noteSettled(5, 9)
	l.forgetAt = len(l.blocked)
	if l.forgetKnownKeys(); len(l.blocked) != 10 {
		t.Errorf("%d keys are left, want those of page 2", len(l.blocked))
	}
}
