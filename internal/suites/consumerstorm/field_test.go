package consumerstorm

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

const (
	drainLimit = 45 * time.Second // from the last fault to rest
	stopLimit  = 20 * time.Second // of a process in good order
	maxShown   = 20               // complaints
	maxDeaths  = 30               // of processes that nobody killed, in one test
)

func ledgerURL() string { return pgtest.URL() }

// A field is a schema and a queue of the test's own, and consumer processes on
// them.
type field struct {
	*testing.T
	pool       *pgxpool.Pool
	ledger     *Ledger
	config     processConfig // of new processes
	publisher  *rabbitmq.Publisher
	topology   wamqp.Config
	control    *amqp.Channel
	published  []Message
	duplicates int        // of those
	processes  []*process // that are meant to be alive
	started    []*process
}

// newField declares the queue. Processes come with [field.add].
func newField(t *testing.T, config processConfig) *field {
	t.Helper()
	pool, schema := pgtest.Schema(t, SQLCreateTables)
	f := &field{T: t, pool: pool, ledger: NewLedger(pool, schema), config: config}
	prefix := rabbittest.Name()
	var err error
	if f.topology, err = rabbitmq.NewConfig(rabbittest.URL(), service, &rabbitmq.ConfigOptions{Prefix: prefix}); err != nil {
		t.Fatal(err)
	}
	queue := f.topology.Queue.GenerateName(topic)
	rabbittest.Delete(t, []string{queue, queue + ".dead"}, []string{f.topology.Exchange.GenerateName(topic)})
	if err := rabbitmq.DeclareTopology(t.Context(), f.topology, topic); err != nil {
		t.Fatal(err)
	}
	if f.publisher, err = rabbitmq.NewPublisher(f.topology, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.publisher.Close() })
	f.control = rabbittest.Channel(t, rabbittest.URL())
	f.config.Schema, f.config.Prefix = schema, prefix
	f.config.AMQPURL, f.config.DatabaseURL = rabbittest.URL(), named(t, pgtest.URL(), schema)
	return f
}

// named returns databaseURL with sessions that pg_stat_activity can tell from
// others.
func named(t *testing.T, databaseURL, name string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil || u.Scheme == "" {
		t.Fatalf("DATABASE_URL is no URL")
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return u.String()
}

// add starts a process, armed with failpoints or not.
func (f *field) add(failpoints string) *process {
	f.Helper()
	config := f.config
	config.Name = fmt.Sprint("consumer", len(f.started))
	p := start(f.T, f.TempDir(), config, failpoints)
	p.armed = failpoints != ""
	f.processes, f.started = append(f.processes, p), append(f.started, p)
	return p
}

// replace starts a process for each dead one, except those that were armed, and returns how many are dead.
func (f *field) replace() (dead int) {
	f.Helper()
	missing := 0
	f.processes = slices.DeleteFunc(f.processes, func(p *process) bool {
		if p.Dead() {
			dead++
		}
		if p.Dead() && !p.armed {
			missing++
		}
		return p.Dead()
	})
	for range missing {
		f.add("")
	}
	return dead
}

// retire lets p end in good order, and fails the test if it does not.
func (f *field) retire(p *process) {
	f.Helper()
	p.Terminate()
	if code := p.Wait(stopLimit); code != 0 {
		f.Fatalf("%s ended with %d within %s:\n%s", p.name, code, stopLimit, p.said())
	}
	f.processes = slices.DeleteFunc(f.processes, func(other *process) bool { return other == p })
}

// A letter is a message to be published.
type letter struct {
	key, n, step, kind string
	payload            string
}

func (l letter) id() string { return fmt.Sprint(l.kind, " ", l.key, l.n, " ", l.payload) }

func (l letter) message() *message.Message {
	msg := message.NewMessage(l.id(), []byte(l.payload))
	stepKey := l.key + ":" + l.step
	if l.n != "" {
		stepKey += "#" + l.n
	}
	msg.Metadata.Set(outbox.HeaderKey, stepKey)
	msg.Metadata.Set(outbox.HeaderScope, "tenant")
	msg.Metadata.Set(outbox.PropertyType, l.kind+"-"+l.step)
	return msg
}

// publish sends letters, in their order. One that was sent before is a
// duplicate.
func (f *field) publish(letters ...letter) {
	f.Helper()
	var batch []outbox.Publication
	for _, l := range letters {
		batch = append(batch, outbox.Publication{Topic: topic, Message: l.message()})
		m := Message{ID: l.id(), Key: l.key + l.n, Kind: l.kind, Payload: []byte(l.payload)}
		if slices.ContainsFunc(f.published, func(other Message) bool { return other.ID == m.ID }) {
			f.duplicates++
		} else {
			f.published = append(f.published, m)
		}
	}
	for _, err := range f.publisher.PublishBatch(f.Context(), batch) {
		if err != nil {
			f.Fatalf("publish: %v", err)
		}
	}
}

// evidence reads what is there now.
func (f *field) evidence() Evidence {
	f.Helper()
	e, err := f.ledger.Read(f.Context(), f.published)
	if err != nil {
		f.Fatal(err)
	}
	return e
}

// waiting returns the number of messages in the queue that are not delivered.
func (f *field) waiting() int { return f.queue().Messages }

func (f *field) queue() amqp.Queue {
	f.Helper()
	queue, err := f.control.QueueDeclarePassive(f.topology.Queue.GenerateName(topic), true, false, false, false, nil)
	if err != nil {
		f.Fatal(err)
	}
	return queue
}

// atRest reports whether nothing is left to do, as far as the tables tell.
func (f *field) atRest() bool {
	f.Helper()
	e := f.evidence()
	for _, s := range e.stepsByIdentity() {
		if len(s.lostEffects()) > 0 {
			return false
		}
	}
	return f.waiting() == 0 && !slices.ContainsFunc(e.Parked, func(p Parked) bool { return p.State == "retrying" })
}

// drain waits until nothing is left to do, replacing processes that die, and then
// retires all. It returns how many died.
func (f *field) drain() (deaths int) {
	f.Helper()
	f.await("nothing is left to do", drainLimit, func() bool {
		if deaths += f.replace(); deaths > maxDeaths {
			f.Fatalf("%d processes have died, and no end is in sight", deaths)
		}
		return f.atRest()
	})
	for len(f.processes) > 0 {
		f.retire(f.processes[0])
	}
	// The tables do not tell whether a process has come to a duplicate.
	if n := f.waiting(); n > f.duplicates {
		f.Errorf("%d messages were in hand, of which %d at most had not been dealt with", n, f.duplicates)
	}
	return deaths
}

// judge fails the test if something has happened that must not.
func (f *field) judge(limits Limits) {
	f.Helper()
	wrong := f.evidence().Check(limits)
	for _, line := range wrong[:min(len(wrong), maxShown)] {
		f.Error(line)
	}
	for _, p := range f.started {
		if p.raced() {
			f.Errorf("%s has a data race:\n%s", p.name, p.said())
		}
	}
}

func (f *field) await(what string, limit time.Duration, done func() bool) {
	f.Helper()
	for deadline := time.Now().Add(limit); !done(); _ = backoff.Sleep(f.Context(), 20*time.Millisecond) {
		if time.Now().After(deadline) {
			f.explain()
			f.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// explain says what is not at rest.
func (f *field) explain() {
	f.Helper()
	e := f.evidence()
	for _, s := range e.stepsByIdentity() {
		lines := s.lostEffects()
		for _, p := range s.parked {
			if p.State == "retrying" {
				lines = append(lines, s.complain("the %s %s is parked (%s after %d attempts)", p.Kind, p.MessageID, p.Reason, p.Attempts)...)
			}
		}
		for _, line := range lines {
			f.Log(line)
		}
	}
	f.Logf("%d messages wait in the queue", f.waiting())
	for _, p := range f.processes {
		f.Logf("%s said last:\n%s", p.name, p.said())
	}
}

// entries counts the entries into handlers by message.
func (e Evidence) entries() map[string]int {
	count := map[string]int{}
	for _, n := range e.Entries {
		count[n.MessageID]++
	}
	return count
}
