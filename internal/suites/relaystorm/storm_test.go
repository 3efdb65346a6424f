package relaystorm

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/internal/testing/relaytest"
	"github.com/sagamill/sagamill/migrations"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
)

var (
	flagRounds = flag.Int("storm.rounds", 0, "rounds of the storm; 0 means a normal one, of one round for each fault")
	flagSeed   = flag.Uint64("storm.seed", 0, "seed of the storm; 0 means a new one")
	flagOnly   = flag.String("storm.only", "", "only faults whose names contain this")
)

const (
	topics       = 3
	keysPerTopic = 8
	perRound     = 200 // messages while the fault is on
	afterwards   = 50  // and when it is over
	relays       = 2

	somePoints = 2 // deaths at points in a normal storm

	untilLimit = 45 * time.Second // for what a fault waits for
	drainLimit = 30 * time.Second // from a fault's end to an empty outbox
	pollPause  = 10 * time.Millisecond
	maxShown   = 20 // complaints of one round
)

// A storm is a run of the test.
type storm struct {
	*testing.T
	seed     uint64
	rng      *rand.Rand
	postgres *postgres
	node     *rabbittest.Node
	proxy    *rabbittest.Proxy // between the relays and the node
	database *pgtest.Proxy     // between the relays and PostgreSQL
	topology wamqp.Config
	schema   string
	dir      string

	history   *relaytest.History
	load      *load
	consumer  *relaytest.Consumer
	consuming context.Context
	reader    *outbox.Relay // for its Stats; it never runs
	keys      []key

	relays  []*relay // that are meant to be alive
	started []*relay

	licences []relaytest.Licence // one for each round
	first    int                 // delivery of the round
	loaded   atomic.Bool
	victim   *relay
	topic    string // what the fault is about
}

func TestStorm(t *testing.T) {
	s := newStorm(t)
	defer s.report() // not at the cleanup: PostgreSQL may be gone by then
	if !failpoint.Enabled {
		t.Log("NOT TESTED: death at named points needs -tags=failpoints")
	}
	for _, f := range s.draw() {
		s.round(f)
	}
	s.end()
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	s := &storm{T: t, seed: *flagSeed, dir: t.TempDir(), schema: pgtest.Name(), history: relaytest.NewHistory()}
	for s.seed == 0 {
		s.seed = rand.Uint64()
	}
	s.rng = rand.New(rand.NewPCG(s.seed, 0))
	t.Logf("-storm.seed=%d", s.seed)
	started := startPostgres(t)
	s.node = rabbittest.StartNode(t)
	s.proxy = rabbittest.NewProxy(t, s.node.URL())
	s.postgres = started()
	if err := migrations.Up(t.Context(), s.postgres.url, s.schema); err != nil {
		t.Fatal(err)
	}
	s.open()
	for i := range topics {
		topic := fmt.Sprint("t", i)
		s.addKeys(topic)
		s.topic = topic
		s.declareTopic()
		s.consumer.Watch(s.consuming, s.topology.Queue.GenerateName(topic))
	}
	s.replenish()
	return s
}

// open connects the load, the consumer and the reader of the statistics.
func (s *storm) open() {
	pool := pgtest.Pool(s.T, s.postgres.url)
	out, err := outbox.NewWriter(&outbox.WriterOptions{Schema: s.schema})
	if err != nil {
		s.Fatal(err)
	}
	s.load = &load{db: pool, cut: make(map[pgtest.Loss]*pgxpool.Pool), out: out, schema: s.schema, history: s.history}
	for _, loss := range []pgtest.Loss{pgtest.LoseReply, pgtest.LoseCommit} {
		proxy, pool := pgtest.NewProxy(s.T)
		proxy.Lose(loss)
		s.load.cut[loss] = pool
	}
	s.database, _ = pgtest.NewProxy(s.T)
	if err := s.load.createTables(s.Context()); err != nil {
		s.Fatal(err)
	}
	if s.reader, err = outbox.NewRelay(pool, &markedPublisher{}, relayOptions(s.schema)); err != nil {
		s.Fatal(err)
	}
	prefix := rabbittest.Name()
	if s.topology, err = rabbitmq.NewConfig(s.node.URL(), service, &rabbitmq.ConfigOptions{Prefix: prefix}); err != nil {
		s.Fatal(err)
	}
	s.consumer = relaytest.NewConsumer(s.node.URL(), s.history)
	consuming, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	s.consuming = consuming
	s.Cleanup(func() {
		cancel()
		s.consumer.Wait()
	})
}

// draw returns the faults of the rounds: each once, then at random. A normal storm
// has only some of the deaths at points.
func (s *storm) draw() []fault {
	all := slices.DeleteFunc(faults(), func(f fault) bool { return !strings.Contains(f.name, *flagOnly) })
	all = needtest.Draw(s, all, func(f fault) string { return f.name })
	if len(all) == 0 {
		s.Fatalf("no fault's name contains %q", *flagOnly)
	}
	var urn []fault
	for _, f := range all {
		urn = append(urn, slices.Repeat([]fault{f}, f.weight)...)
	}
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if *flagRounds == 0 {
		return withFewPoints(all)
	}
	for len(all) < *flagRounds {
		all = append(all, urn[s.rng.IntN(len(urn))])
	}
	return all[:*flagRounds]
}

// withFewPoints returns faults without most deaths at a point. The package outbox tests each of those.
func withFewPoints(faults []fault) []fault {
	left := somePoints
	return slices.DeleteFunc(faults, func(f fault) bool {
		if f.point {
			left--
		}
		return f.point && left < 0
	})
}

// round lets f strike while messages are written, and judges what became of all
// messages so far once the outbox is empty.
func (s *storm) round(f fault) {
	s.Helper()
	begin, number := time.Now(), len(s.licences)
	s.licences = append(s.licences, relaytest.Licence{Repeats: f.windows * window, Overlap: f.overlap})
	s.first, s.topic = s.history.Count(), ""
	s.load.committed.Store(0)
	s.loaded.Store(false)
	s.Logf("round %d: %s", number, f.name)
	if f.before != nil {
		f.before(s)
	}
	ctx, cancel := context.WithCancel(s.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	keys := slices.Clone(s.keys)
	group.Go(func() {
		s.load.write(ctx, task{seed: s.seed + uint64(number), round: number, messages: perRound * max(1, f.times), keys: keys})
		s.loaded.Store(true)
	})
	if f.inject != nil {
		s.committed(perRound/5 + s.rng.IntN(perRound*2/5))
		f.inject(s)
	}
	if f.until != nil {
		s.await(f.name+", as it should show", untilLimit, func() bool { return f.until(s) })
	}
	if f.heal != nil {
		f.heal(s)
	}
	s.await("all is written", untilLimit, s.written)
	s.load.write(ctx, task{seed: s.seed - uint64(number), round: number, messages: afterwards, keys: keys, brisk: true})
	s.drain()
	s.replenish()
	s.judge(number, begin)
	s.keys = s.keys[:topics*keysPerTopic] // without those of a topic of this round
}

// drain waits until every message has arrived and the outbox is empty.
func (s *storm) drain() {
	s.Helper()
	s.await("every message has arrived", drainLimit, s.settled)
	s.await("the outbox is empty", drainLimit, func() bool {
		o := s.outbox()
		return o.Stored == 0 && o.Delayed == 0 && o.Waiting == 0 && o.Refused == 0
	})
}

// judge fails the test if something has happened that must not.
func (s *storm) judge(round int, begin time.Time) {
	s.Helper()
	e := s.history.Evidence()
	wrong := relaytest.Check(e, s.licences)
	for _, line := range wrong[:min(len(wrong), maxShown)] {
		s.Error(line)
	}
	if err := s.consumer.Strange(); err != nil {
		s.Error(err)
	}
	s.Logf("round %d: %d deliveries, %d messages published again (%d may be), %v",
		round, len(e.Arrivals)-s.first, e.Repeats(len(s.licences))[round], s.licences[round].Repeats, time.Since(begin).Round(time.Millisecond))
	if s.Failed() {
		s.FailNow()
	}
}

// end stops the relays and looks for what has come late, and at the test itself.
func (s *storm) end() {
	s.Helper()
	s.retireAll()
	s.await("the queues are empty", drainLimit, s.queuesEmpty)
	s.judge(len(s.licences)-1, time.Now())
	counts := make(map[string]int64)
	for _, m := range s.history.Evidence().Committed {
		counts[m.Key]++
	}
	for name, count := range counts {
		var version int64
		err := s.load.db.QueryRow(s.Context(), "SELECT version FROM "+s.schema+".counter WHERE key = $1", name).Scan(&version)
		if err != nil || version != count {
			s.Errorf("the writers remember %d messages of %s, the database has counted %d, %v", count, name, version, err)
		}
	}
	for _, r := range s.started {
		if r.raced() {
			s.Errorf("%s has a data race:\n%s", r.name, r.said())
		}
	}
	o := &s.load.outcomes
	s.Logf("%d rounds, %d messages, %d deliveries; %d transactions committed, %d did not, %d of these for an error; COMMITs without an answer: %d had committed, %d had not",
		len(s.licences), len(s.history.Evidence().Committed), s.history.Count(), o.committed.Load(), o.rolledBack.Load(), o.failed.Load(),
		o.foundCommitted.Load(), o.foundNot.Load())
}

// report says how things stood when a storm failed.
func (s *storm) report() {
	if !s.Failed() {
		return
	}
	missing := s.history.Missing("")
	for _, m := range missing[:min(len(missing), maxShown)] {
		s.Logf("missing: %s v%d of round %d", m.Key, m.Version, m.Round)
	}
	stats, err := s.reader.Stats(context.WithoutCancel(s.Context()))
	s.Logf("%d messages of the round are committed, %d are missing, the outbox has %+v, %v", s.load.committed.Load(), len(missing), stats, err)
	for _, r := range s.relays {
		s.Logf("%s said last:\n%s", r.name, r.said())
	}
}

// await waits until done, and fails the test after limit.
func (s *storm) await(what string, limit time.Duration, done func() bool) {
	s.Helper()
	await(s.T, what, limit, func() bool {
		for _, r := range s.relays {
			if r.Dead() && r != s.victim {
				s.Fatalf("%s has ended by itself:\n%s", r.name, r.said())
			}
		}
		return done()
	})
}

func await(t *testing.T, what string, limit time.Duration, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); _ = backoff.Sleep(t.Context(), pollPause) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// outbox returns the counts. While the database is away, no count is 0.
func (s *storm) outbox() outbox.Stats {
	stats, err := s.reader.Stats(s.Context())
	if err != nil {
		return outbox.Stats{Stored: -1}
	}
	if stats.Dead > 0 {
		s.Fatalf("%d messages are dead", stats.Dead)
	}
	return stats
}

// replenish starts relays in the place of those that were killed.
func (s *storm) replenish() {
	s.Helper()
	s.relays = slices.DeleteFunc(s.relays, func(r *relay) bool { return r == s.victim && r.Dead() })
	for len(s.relays) < relays {
		s.newRelay("")
	}
}

// newRelay starts a relay, armed with a failpoint or not.
func (s *storm) newRelay(at string) *relay {
	s.Helper()
	r := startRelay(s.T, s.dir, relayConfig{
		Name: fmt.Sprint("relay", len(s.started)), DatabaseURL: s.postgres.through(s.T, s.database.Addr()), AMQPURL: s.proxy.URL(),
		Prefix: s.topology.Exchange.GenerateName(""), Schema: s.schema, Lock: s.lock(),
	}, at)
	s.Cleanup(r.Kill)
	s.relays, s.started = append(s.relays, r), append(s.started, r)
	return r
}

// take removes r from the relays that are meant to be alive.
func (s *storm) take(r *relay) *relay {
	s.relays = slices.DeleteFunc(s.relays, func(other *relay) bool { return other == r })
	return r
}

// active returns the relay that has published last.
func (s *storm) active() (r *relay) {
	s.Helper()
	s.await("a relay publishes", untilLimit, func() bool {
		name, err := os.ReadFile(s.lock())
		if i := slices.IndexFunc(s.relays, func(r *relay) bool { return r.name == string(name) }); err == nil && i >= 0 {
			r = s.relays[i]
		}
		return r != nil
	})
	return r
}

// lock is the file that says which relay is active.
func (s *storm) lock() string { return filepath.Join(s.dir, "lock") }

// committed waits until so many messages more are committed.
func (s *storm) committed(more int) {
	s.Helper()
	until := s.load.committed.Load() + int64(more)
	s.await("the writers go on", untilLimit, func() bool { return s.load.committed.Load() >= until })
}

// addKeys lets keys of topic be written, until the end of the round if it has
// begun.
func (s *storm) addKeys(topic string) {
	s.Helper()
	var added []key
	for i := range keysPerTopic {
		added = append(added, key{name: fmt.Sprint(topic, "-", i), topic: topic})
	}
	if err := s.load.addKeys(s.Context(), added); err != nil {
		s.Fatal(err)
	}
	s.keys = append(s.keys, added...)
}

func (s *storm) anyTopic() string { return fmt.Sprint("t", s.rng.IntN(topics)) }

// declareTopic declares the exchange, the queue and the binding of the fault's topic. Some of them may exist.
func (s *storm) declareTopic() {
	s.Helper()
	if err := rabbitmq.DeclareTopology(s.Context(), s.topology, s.topic); err != nil {
		s.Fatal(err)
	}
}

// administer calls do with a channel of a new connection.
func (s *storm) administer(what string, do func(*amqp.Channel) error) {
	s.Helper()
	connection, err := amqp.Dial(s.node.URL())
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
	defer connection.Close()
	ch, err := connection.Channel()
	if err == nil {
		err = do(ch)
	}
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// queuesEmpty reports whether everything has been handed to the consumer.
func (s *storm) queuesEmpty() (empty bool) {
	s.Helper()
	empty = true
	s.administer("count messages", func(ch *amqp.Channel) error {
		for i := range topics {
			queue, err := ch.QueueDeclarePassive(s.topology.Queue.GenerateName(fmt.Sprint("t", i)), true, false, false, false, nil)
			if err != nil {
				return err
			}
			empty = empty && queue.Messages == 0
		}
		return nil
	})
	return empty
}
