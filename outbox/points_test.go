//go:build failpoints

package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/internal/testing/relaytest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

// A place is a failpoint, and how a relay comes there.
type place struct {
	point   string
	hits    int          // it strikes at that visit; default: the first
	within  bool         // a transaction is open there
	still   bool         // nothing is on its way there, so that nothing may be published twice
	empties bool         // it needs leaves that are empty
	arrange func(*field) // before the relay is started
	leave   bool         // the relay comes there when it is told to leave
}

// places are all failpoints of the relay.
var places = []place{
	{point: "outbox/before-take-over", within: true, still: true},
	{point: "outbox/after-take-over", still: true},
	{point: "outbox/before-adopt", within: true, arrange: (*field).restore},
	{point: "outbox/after-promote", arrange: (*field).orphan},
	{point: "outbox/after-read-held"},
	{point: "outbox/before-move", within: true},
	{point: "outbox/after-move"},
	{point: "outbox/after-read", hits: 2},
	{point: "outbox/before-publish", hits: 2},
	{point: "outbox/after-confirm", hits: 2},
	{point: "outbox/after-publish", hits: 2},
	{point: "outbox/before-commit", within: true},
	{point: "outbox/after-checkpoint", hits: 2},
	{point: "outbox/before-turn-cursors", within: true},
	{point: "outbox/after-turn-cursors"},
	{point: "outbox/before-empty", within: true, empties: true},
	{point: "outbox/after-empty", empties: true},
	{point: "outbox/after-turn-leaves", empties: true},
	{point: "outbox/before-renew"},
	{point: "outbox/after-renew"},
	{point: "outbox/before-release", still: true, leave: true},
}

// lateKill is a kill, at the next renewal of the lease, of a relay that is delayed at the
// place: time enough for it to note what it has not done.
const lateKill = "delay, then kill"

// A relay is killed, failed, delayed past its lease and stopped past it at each of its
// failpoints, and another one takes over. Every message that was committed arrives at
// RabbitMQ, none that was rolled back; first arrivals of each key are in order; at most
// a window of messages comes twice, under the same ids. One that was stopped changes
// nothing when it goes on, and leads again when it is its turn.
func TestEveryFailpointOfTheRelay(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	for _, p := range failpoint.Points("outbox") {
		if !slices.ContainsFunc(places, func(at place) bool { return at.point == p.Name }) {
			t.Errorf("%s is at no place", p.Name)
		}
	}
	for _, p := range places {
		t.Run(strings.TrimPrefix(p.point, "outbox/"), func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			for _, action := range failpoint.Actions() {
				t.Run(action, func(t *testing.T) {
					needtest.Share(t)
					f.on(t, p).strike(action)
				})
			}
			if p.point == "outbox/before-publish" {
				t.Run(lateKill, func(t *testing.T) { f.on(t, p).strike(lateKill) })
			}
		})
	}
}

// A field is an outbox, with its broker and who listens there. What happens at a place
// is a round on it.
type field struct {
	*testing.T
	pool     *pgxpool.Pool
	schema   string
	prefix   string
	topology wamqp.Config
	pub      *rabbitmq.Publisher // of the relay that takes over
	writer   *outbox.Writer
	history  *relaytest.History
	consumer *relaytest.Consumer
	queue    string
	admin    *amqp.Channel
	version  *int64              // of the last message
	licences []relaytest.Licence // one for each round

	at    place
	child *child
}

// The topics, all of one queue, so that what arrives has an order: one that is bound to
// it, one that is not before the fault is over, and one that never is.
const (
	topic = "t"
	late  = "late"
	gone  = "gone"
)

func newField(t *testing.T) *field {
	t.Helper()
	f := &field{T: t, admin: rabbittest.Channel(t, rabbittest.URL()), prefix: rabbittest.Name(), history: relaytest.NewHistory(), version: new(int64)}
	f.pool, f.schema = pgtest.Schema(t)
	var err error
	if f.topology, err = rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{Prefix: f.prefix}); err != nil {
		t.Fatal(err)
	}
	if f.writer, err = outbox.NewWriter(&outbox.WriterOptions{Schema: f.schema}); err != nil {
		t.Fatal(err)
	}
	if f.pub, err = rabbitmq.NewPublisher(f.topology, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.pub.Close() })
	f.consumer = relaytest.NewConsumer(rabbittest.URL(), f.history)
	listen, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		cancel()
		f.consumer.Wait()
	})
	f.queue = f.topology.Queue.GenerateName(topic)
	rabbittest.Delete(t, []string{f.queue, f.queue + ".dead"}, []string{f.prefix + topic, f.prefix + late, f.prefix + gone})
	err = rabbitmq.DeclareTopology(t.Context(), f.topology, topic)
	if err == nil {
		err = f.admin.ExchangeDeclare(f.prefix+late, amqp.ExchangeFanout, true, false, false, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.consumer.Watch(listen, f.queue)
	return f
}

// on begins a round at p.
func (f *field) on(t *testing.T, p place) *field {
	g := *f
	g.T, g.at = t, p
	f.licences = append(f.licences, relaytest.Licence{Overlap: true}) // the second lead begins when the first lease is over, by decree
	g.licences = f.licences
	if err := g.admin.QueueUnbind(f.queue, "", f.prefix+late, nil); err != nil {
		t.Fatal(err)
	}
	return &g
}

// listen lets messages to the late topic reach the queue.
func (f *field) listen() {
	f.Helper()
	if err := f.admin.QueueBind(f.queue, "", f.prefix+late, false, nil); err != nil {
		f.Fatal(err)
	}
}

// A draft is a message to be written.
type draft struct {
	topic, key string
	delay      time.Duration
}

// write writes drafts in a transaction, which rolls back if undone, and notes them.
func (f *field) write(undone bool, drafts ...draft) {
	f.Helper()
	var notes []relaytest.Message
	var messages []outbox.Message
	for _, d := range drafts {
		*f.version++
		note := relaytest.Message{ID: uuid.Must(uuid.NewV7()).String(), Key: d.key, Topic: d.topic, Version: *f.version, Round: len(f.licences) - 1, Delayed: d.delay > 0}
		payload, err := json.Marshal(relaytest.Body{Key: note.Key, Version: note.Version})
		if err != nil {
			f.Fatal(err)
		}
		notes = append(notes, note)
		messages = append(messages, outbox.Message{
			ID: note.ID, Topic: d.topic, Scope: "tenant", Key: d.key, Step: "step", N: fmt.Sprint(note.Version), Delay: d.delay, Payload: payload,
		})
	}
	tx, err := f.pool.Begin(f.Context())
	if err == nil {
		err = f.writer.Write(f.Context(), tx, messages...)
	}
	if err == nil && undone {
		f.history.Undo(notes...)
		err = tx.Rollback(f.Context())
	} else if err == nil {
		err = tx.Commit(f.Context())
		f.history.Commit(notes...)
	}
	if err != nil {
		f.Fatalf("write: %v", err)
	}
}

// some writes a few messages, and some that roll back.
func (f *field) some() {
	f.Helper()
	f.write(false, draft{topic: topic, key: "a"}, draft{topic: topic, key: "b"})
	f.write(true, draft{topic: topic, key: "a"}, draft{topic: topic, key: "c"})
	f.write(false, draft{topic: topic, key: "a"}, draft{topic: topic, key: "c"}, draft{topic: topic, key: "a"})
}

// mix writes what keeps a relay busy in all ways: messages of one key behind a refused
// one, delayed ones behind that and alone, and plain ones.
func (f *field) mix() {
	f.Helper()
	f.some()
	f.write(false, draft{topic: late, key: "r"}, draft{topic: topic, key: "r"})
	f.write(false, draft{topic: topic, key: "r", delay: time.Millisecond})
	f.write(false, draft{topic: topic, key: "d", delay: time.Millisecond})
	for range 3 {
		f.some()
	}
}

// strike lets action strike a relay at the place, and compares what is true after that
// with what must be.
func (f *field) strike(action string) {
	if f.at.arrange != nil {
		f.at.arrange(f)
	}
	f.mix()
	fault := fmt.Sprintf("%s=%s", f.at.point, action)
	armed := fault
	if action == "delay" && f.at.within {
		armed = fmt.Sprintf("%s(%s)", armed, shortLease*5/4)
	}
	begun := f.stats().Epoch
	armed = fmt.Sprintf("%s:%d", armed, max(1, f.at.hits))
	if action == lateKill {
		fault = f.at.point + "=delay"
		armed = fmt.Sprintf("%s(%s):%d;outbox/before-renew=kill", fault, shortLease, f.at.hits)
	}
	for there := false; !there; { // on a busy machine a relay renews its lease, and dies of lateKill, before it comes there
		f.child = startChild(f.T, childConfig{f.schema, f.prefix, pgtest.Name(), f.retention()}, armed)
		there = f.comeThere(fault, action == lateKill)
	}
	switch action {
	case "kill", lateKill:
		f.await("the relay dies", f.child.Dead)
		f.overtake()()
	case "error":
		f.failed()
	case "delay":
		f.delayed()
	case "stop":
		f.stopped()
	}
	if got := f.child.strikes(); !slices.Equal(got, []string{fault}) && action != lateKill {
		f.Errorf("%q struck, want %s", got, fault)
	}
	f.license(int(f.stats().Epoch-begun), action)
	f.judge()
}

// license lets as many messages be published twice as may have been when the lead has
// changed so often. A relay that leaves in good order, or is struck where nothing is on
// its way, costs none; one that a busy machine has kept from renewing its lease costs a
// window, as a dead one does.
func (f *field) license(changes int, action string) {
	meant := map[string]int{"kill": 2, lateKill: 2, "error": 1, "delay": 1, "stop": 3}[action]
	if f.at.leave && action != "delay" || f.at.point == "outbox/after-take-over" && action == "error" {
		meant = 2
	}
	crashes := max(0, changes-meant)
	if !f.at.still || strings.Contains(f.child.words(), outbox.LeadUnfinished) {
		crashes++ // on a busy machine the lease can end before the relay leaves
	}
	f.licences[len(f.licences)-1].Repeats = crashes * window
	if f.at.point == "outbox/before-adopt" {
		for i := range f.licences {
			f.licences[i].Repeats = len(f.history.Evidence().Committed)
		}
	}
}

// comeThere writes until the fault has struck. If the relay may die before, comeThere reports false for that.
func (f *field) comeThere(fault string, mayDie bool) (there bool) {
	f.Helper()
	f.await(fault, func() bool {
		dead := mayDie && f.child.Dead()
		if there = slices.Contains(f.child.strikes(), fault); there || dead {
			return true
		}
		switch missing := len(f.history.Missing("")); {
		case f.at.leave && f.arrived("a", "b", "c", "d"):
			f.child.leave()
		case !f.at.leave && missing < 2*window:
			f.some()
		}
		return false
	})
	return there
}

// failed waits until the relay has got over an error by itself, or has ended all the
// same.
func (f *field) failed() {
	f.Helper()
	if f.at.leave {
		f.await("the relay ends", f.child.Dead)
		f.overtake()()
		return
	}
	f.listen()
	f.some()
	f.drain()
	f.child.retire()
}

// delayed lets another relay take over from one that is late, if it can, or wait for it.
func (f *field) delayed() {
	f.Helper()
	stop := f.overtake()
	f.child.retire()
	stop()
}

// stopped lets another relay take over from one that hangs, wakes that one, and lets
// it lead again.
func (f *field) stopped() {
	f.Helper()
	f.await("the relay hangs", f.child.Stopped)
	stop := f.overtake()
	leads := f.stats()
	f.some()
	f.child.Continue()
	if !f.at.leave {
		f.await("it finds that another one leads", func() bool { return strings.Contains(f.child.words(), "relay stands by") })
	}
	if f.at.leave {
		f.child.retire()
	}
	f.some()
	f.drain()
	if got := f.stats(); got.Epoch != leads.Epoch || got.Holder != leads.Holder {
		f.Errorf("epoch %d of %q, want %d of %q: the relay that had hung has changed who leads", got.Epoch, got.Holder, leads.Epoch, leads.Holder)
	}
	stop()
	if !f.at.leave {
		f.some()
		f.drain() // by the one that had hung
		f.child.retire()
	}
}

// overtake lets the lease end, starts another relay and waits until everything has
// arrived. What it returns stops that relay.
func (f *field) overtake() (stop func()) {
	f.Helper()
	f.exec("UPDATE {schema}.outbox_relay SET lease_until = 'epoch'") // waits for who has it locked
	stop = f.lead(longLease)
	f.write(false, draft{topic: topic, key: "r"})
	f.await("plain messages arrive", func() bool { return f.arrived("a", "b", "c", "d") })
	f.listen()
	f.some()
	f.drain()
	return stop
}

// lead starts a relay within the test.
func (f *field) lead(lease time.Duration) (stop func()) {
	f.Helper()
	opts := relayOptions(f.schema, lease)
	opts.Retention = f.retention()
	opts.Logger = slog.New(slog.NewTextHandler(f.Output(), nil))
	relay, err := outbox.NewRelay(f.pool, f.pub, opts)
	if err != nil {
		f.Fatal(err)
	}
	relay.Brisk()
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			f.Errorf("Run = %v", err)
		}
	}
	f.Cleanup(stop)
	return stop
}

// retention is how long published messages are kept: a relay that goes by a cursor that
// is not the newest publishes them again.
func (f *field) retention() time.Duration {
	if f.at.empties {
		return outbox.NoRetention
	}
	return time.Hour
}

// restore lets the log look like one from another cluster. All that is in it is
// published again.
func (f *field) restore() {
	f.exec("UPDATE {schema}.outbox_relay SET system_identifier = '1'")
}

// orphan lets messages wait behind one that an operator removes by hand.
func (f *field) orphan() {
	f.Helper()
	f.refuse(gone)
	f.exec("DELETE FROM {schema}.outbox_held WHERE state = 'refused'")
	f.history.Withdraw(gone)
}

// refuse lets a message to a topic be refused, another one wait behind it, and stops
// the relay that has done so.
func (f *field) refuse(to string) {
	f.Helper()
	f.write(false, draft{topic: to, key: "g"}, draft{topic: topic, key: "g"})
	stop := f.lead(shortLease)
	f.await("a message is refused and another one waits", func() bool {
		s := f.stats()
		return s.Refused == 1 && s.Waiting == 1 && s.Stored == 0
	})
	stop()
}

func (f *field) exec(statement string) {
	f.Helper()
	if _, err := f.pool.Exec(f.Context(), strings.ReplaceAll(statement, "{schema}", f.schema)); err != nil {
		f.Fatalf("%s: %v", statement, err)
	}
}

func (f *field) stats() outbox.Stats {
	f.Helper()
	s, err := outbox.ReadStats(f.Context(), f.pool, f.schema)
	if err != nil {
		f.Fatal(err)
	}
	return s
}

// arrived reports whether all messages of keys have.
func (f *field) arrived(keys ...string) bool {
	return !slices.ContainsFunc(f.history.Missing(""), func(m relaytest.Message) bool { return slices.Contains(keys, m.Key) })
}

// drain waits until all messages have arrived and the outbox is empty.
func (f *field) drain() {
	f.Helper()
	f.await("all messages have arrived", func() bool { return len(f.history.Missing("")) == 0 })
	f.await("the outbox is empty", func() bool {
		s := f.stats()
		return s.Stored+s.Delayed+s.Waiting+s.Refused+s.Dead == 0
	})
}

// judge fails the test if something has happened that must not.
func (f *field) judge() {
	f.Helper()
	for _, wrong := range relaytest.Check(f.history.Evidence(), f.licences) {
		f.Error(wrong)
	}
	if err := f.consumer.Strange(); err != nil {
		f.Error(err)
	}
	if f.Failed() {
		f.FailNow()
	}
}

// patience is how long a test waits for what must come.
const patience = time.Minute

// await polls until done.
func (f *field) await(what string, done func() bool) {
	f.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(deadline) {
			f.Fatalf("not within %s: %s; missing %v; %+v", patience, what, f.history.Missing(""), f.stats())
		}
	}
}
