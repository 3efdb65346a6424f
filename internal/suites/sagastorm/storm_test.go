package sagastorm

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/rabbitmq"
	"github.com/sagamill/sagamill/saga"
)

var (
	flagRounds = flag.Int("storm.rounds", 1, "rounds of the storm; in each, every fault strikes once")
	flagSeed   = flag.Uint64("storm.seed", 0, "seed of the storm; 0 means a new one")
	flagOnly   = flag.String("storm.only", "", "only faults whose names contain this")
)

const (
	each           = 2  // processes of a role
	perStrike      = 10 // instances that are started before a fault strikes
	duplicates     = 60
	betweenStrikes = 120 * time.Millisecond
	drainLimit     = 60 * time.Second // from the last fault to rest
	stopLimit      = 20 * time.Second // of a process in good order
	maxShown       = 20               // complaints
	expiry         = time.Second      // of leases, while the storm drains
)

// A storm is a run of the test.
type storm struct {
	*testing.T
	rng       *rand.Rand
	pool      *pgxpool.Pool
	direct    string        // address of the database, for participants
	config    processConfig // of new processes
	database  *pgtest.Proxy // before that of orchestrators
	history   *history
	relay     *outbox.Relay
	processes []*process // that are meant to be alive
	started   []*process
	hung      *process
	deaths    int
	deck      []card
	kinds     map[string]kind
	begun     map[string]begun // by key
}

// A begun is what an instance was started with.
type begun struct {
	kind string
	ends map[string]string
}

// A history publishes, and remembers what it has published.
type history struct {
	*rabbitmq.Publisher
	mu  sync.Mutex
	all []outbox.Publication
}

// PublishBatch implements [outbox.Publisher].
func (h *history) PublishBatch(ctx context.Context, batch []outbox.Publication) []error {
	h.mu.Lock()
	for _, p := range batch {
		h.all = append(h.all, outbox.Publication{Topic: p.Topic, Message: p.Message.Copy()})
	}
	h.mu.Unlock()
	return h.Publisher.PublishBatch(ctx, batch)
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	seed := *flagSeed
	for seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-storm.seed=%d", seed)
	pool, schema := pgtest.Schema(t)
	s := &storm{T: t, rng: rand.New(rand.NewPCG(seed, 0)), pool: pool, kinds: kinds(schema), begun: map[string]begun{}}
	if _, err := pool.Exec(t.Context(), "CREATE TABLE "+schema+".storm_effect (id bigserial PRIMARY KEY, key text, n text, step text, kind text)"); err != nil {
		t.Fatal(err)
	}
	s.database, _ = pgtest.NewProxy(t)
	s.direct = address(pgtest.URL(), "", schema)
	s.config = processConfig{Database: address(pgtest.URL(), s.database.Addr(), schema), AMQP: rabbittest.URL(), Prefix: rabbittest.Name(), Schema: schema}
	s.declare(orchestrator, replyTopics()...)
	s.declare(participant, topic)
	s.publish()
	for range each {
		s.add(orchestrator, "")
		s.add(participant, "")
	}
	return s
}

// address returns databaseURL with sessions that can be told from others, and with
// another host unless that is "".
func address(databaseURL, host, name string) string {
	u, err := url.Parse(databaseURL)
	if err != nil || u.Scheme == "" {
		panic("DATABASE_URL is no URL")
	}
	if host != "" {
		u.Host = host
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return u.String()
}

// declare makes the queues of a service, until the test ends.
func (s *storm) declare(service string, topics ...string) {
	s.Helper()
	config := topologyOf(rabbittest.URL(), s.config.Prefix, service)
	var queues, exchanges []string
	for _, topic := range topics {
		queue := config.Queue.GenerateName(topic)
		queues, exchanges = append(queues, queue, queue+".dead"), append(exchanges, config.Exchange.GenerateName(topic))
	}
	rabbittest.Delete(s, queues, exchanges)
	if err := rabbitmq.DeclareTopology(s.Context(), config, topics...); err != nil {
		s.Fatal(err)
	}
}

// publish runs a relay until the test ends.
func (s *storm) publish() {
	s.Helper()
	publisher, err := rabbitmq.NewPublisher(topologyOf(rabbittest.URL(), s.config.Prefix, participant), nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { publisher.Close() })
	s.history = &history{Publisher: publisher}
	s.relay, err = outbox.NewRelay(s.pool, s.history, &outbox.RelayOptions{Schema: s.config.Schema, Logger: quiet, PollMax: 20 * time.Millisecond})
	if err != nil {
		s.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.relay.Run(ctx) }()
	s.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.Errorf("relay: %v", err)
		}
	})
}

// A fault is what strikes.
type fault struct {
	name   string
	strike func(*storm)
	heal   func(*storm)
}

// points are where an orchestrator dies in the course of its work.
var points = []string{"consumer/before-commit", "consumer/after-commit", "consumer/before-ack", "saga/after-timer-claim", "saga/before-timer-commit", "saga/after-timer-commit"}

func faults() []fault {
	all := []fault{
		{name: "orchestrator killed", strike: func(s *storm) { s.one(orchestrator).Kill() }},
		{name: "participant killed", strike: func(s *storm) { s.one(participant).Kill() }},
		{name: "orchestrator hangs", strike: func(s *storm) { s.hang(orchestrator) }, heal: func(s *storm) { s.hung.Continue() }},
		{name: "participant hangs", strike: func(s *storm) { s.hang(participant) }, heal: func(s *storm) { s.hung.Continue() }},
		{name: "orchestrator hangs and is killed", strike: func(s *storm) { s.hang(orchestrator) }, heal: func(s *storm) { s.hung.Kill() }},
		{name: "orchestrator hangs, and its sessions end", strike: (*storm).lose, heal: func(s *storm) { s.hung.Continue() }},
		{name: "sessions ended", strike: (*storm).terminate},
		{name: "answers to COMMITs lost", strike: func(s *storm) { s.database.Lose(pgtest.LoseReply) }, heal: (*storm).loseNothing},
		{name: "COMMITs lost", strike: func(s *storm) { s.database.Lose(pgtest.LoseCommit) }, heal: (*storm).loseNothing},
		{name: "duplicates", strike: (*storm).repeat},
	}
	for _, point := range points {
		if failpoint.Enabled {
			all = append(all, fault{name: "killed at " + point, strike: func(s *storm) {
				s.one(orchestrator).Kill()
				s.forgetDead()
				s.add(orchestrator, fmt.Sprint(point, "=kill:", 1+s.rng.IntN(6)))
			}})
		}
	}
	return all
}

func (s *storm) forgetDead() {
	for _, p := range slices.Clone(s.processes) {
		if p.Dead() {
			s.deaths++
			s.forget(p)
		}
	}
}

func (s *storm) loseNothing() { s.database.Lose(pgtest.LoseNothing) }

func (s *storm) hang(role string) {
	s.Helper()
	s.hung = s.one(role)
	s.hung.Stop()
}

// lose lets an orchestrator hang for so long that the database gives up on it, and
// others do what it has begun.
func (s *storm) lose() {
	s.Helper()
	s.hang(orchestrator)
	s.terminate()
	s.expire()
}

// terminate ends the sessions of all processes.
func (s *storm) terminate() {
	s.Helper()
	s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", s.config.Schema)
}

// repeat publishes messages again that were published at any time before.
func (s *storm) repeat() {
	s.Helper()
	var again []outbox.Publication
	s.history.mu.Lock()
	for range min(duplicates, len(s.history.all)) {
		p := s.history.all[s.rng.IntN(len(s.history.all))]
		again = append(again, outbox.Publication{Topic: p.Topic, Message: p.Message.Copy()})
	}
	s.history.mu.Unlock()
	for _, err := range s.history.Publisher.PublishBatch(s.Context(), again) {
		if err != nil {
			s.Fatalf("publish: %v", err)
		}
	}
}

func (s *storm) exec(statement string, args ...any) {
	s.Helper()
	if _, err := s.pool.Exec(s.Context(), statement, args...); err != nil {
		s.Fatal(err)
	}
}

// expire lets leases and waits end: those of timers that came to nothing, and those of what is
// parked.
func (s *storm) expire() {
	s.Helper()
	s.exec("UPDATE " + s.config.Schema + ".saga SET due_at = clock_timestamp() WHERE tries > 0 AND due_at IS NOT NULL")
	s.exec("UPDATE " + s.config.Schema + ".parked SET due_at = clock_timestamp() WHERE state = 'retrying'")
}

// After every fault, every saga ends with the outcomes of its steps, and the effects match the state of the
// machine.
func TestStorm(t *testing.T) {
	if !failpoint.Enabled {
		t.Log("NOT TESTED: death at named points needs -tags=failpoints")
	}
	s := newStorm(t)
	for round := range *flagRounds {
		all := slices.DeleteFunc(faults(), func(f fault) bool { return !strings.Contains(f.name, *flagOnly) })
		s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for i, f := range all {
			s.begin(fmt.Sprint(round, "-", i))
			f.strike(s)
			_ = backoff.Sleep(s.Context(), betweenStrikes)
			if f.heal != nil {
				f.heal(s)
			}
			s.replace()
		}
		s.drain()
	}
	s.retire()
	s.judge()
	t.Logf("%d instances; %d messages; %d processes, %d of them died", len(s.begun), len(s.history.all), len(s.started), s.deaths)
}

// A card says what one step of a saga comes to.
type card struct{ kind, step, end string }

// shuffled returns a card for each step and each end, and for each saga one without.
func (s *storm) shuffled() (deck []card) {
	for _, name := range []string{"line", "fan", "pay", "mixed", "nest"} {
		deck = append(deck, card{kind: name})
		for _, step := range s.kinds[name].names {
			for _, end := range []string{reject, once, dead, flaky, slow, undoOdd, skip} {
				deck = append(deck, card{name, step, end})
			}
		}
	}
	s.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

// deal returns the next card.
func (s *storm) deal() card {
	if len(s.deck) == 0 {
		s.deck = s.shuffled()
	}
	c := s.deck[0]
	s.deck = s.deck[1:]
	return c
}

// begin starts instances: in most, one step is not as it should be, in some two are.
func (s *storm) begin(prefix string) {
	s.Helper()
	for i := range perStrike {
		c := s.deal()
		b := begun{kind: c.kind, ends: map[string]string{}}
		if s.rng.IntN(3) == 0 {
			b.ends[s.kinds[c.kind].names[s.rng.IntN(len(s.kinds[c.kind].names))]] = s.deal().end
		}
		if c.step != "" {
			b.ends[c.step] = c.end
		}
		s.start(fmt.Sprint(prefix, "-", i), b)
	}
	s.relay.Wake()
}

func (s *storm) start(key string, b begun) {
	s.Helper()
	s.begun[key] = b
	starter, err := saga.NewStarter(s.kinds[b.kind].plan, &saga.StarterOptions{Schema: s.config.Schema})
	if err != nil {
		s.Fatal(err)
	}
	err = pgx.BeginFunc(s.Context(), s.pool, func(tx pgx.Tx) error {
		_, err := starter.Start(s.Context(), tx, saga.ID{Scope: "tenant", Key: key}, job{Ends: b.ends})
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// drain waits until all have ended, or are stuck or held, and nothing is parked to run again.
func (s *storm) drain() {
	s.Helper()
	s.loseNothing()
	var left []string
	var expired time.Time
	for limit := time.Now().Add(drainLimit); ; _ = backoff.Sleep(s.Context(), 50*time.Millisecond) {
		s.replace()
		if expired.Add(expiry).Before(time.Now()) {
			s.expire()
			expired = time.Now()
		}
		rows, _ := s.pool.Query(s.Context(), `
			SELECT key || ' ' || path || ' ' || status || ' ' || progress FROM `+s.config.Schema+`.saga WHERE ended_at IS NULL AND status <> 'stuck'
				AND NOT (status = 'running' AND reason <> '' AND tries = 0 AND due_at IS NULL)
			UNION ALL SELECT 'parked ' || key || ' ' || step || ' ' || n || ' ' || error FROM `+s.config.Schema+`.parked WHERE state = 'retrying'`)
		var err error
		if left, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			s.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			break
		}
	}
	for _, p := range s.processes {
		s.Logf("%s said last:\n%s", p.role, p.said())
	}
	s.Fatalf("%d are not at rest within %s:\n%s", len(left), drainLimit, strings.Join(left[:min(len(left), maxShown)], "\n"))
}

// judge fails the test if something has happened that must not.
func (s *storm) judge() {
	s.Helper()
	wrong, err := s.check()
	if err != nil {
		s.Fatal(err)
	}
	for _, line := range wrong[:min(len(wrong), maxShown)] {
		s.Error(line)
	}
	for _, p := range s.started {
		if strings.Contains(p.said(), "DATA RACE") {
			s.Errorf("%s has a data race:\n%s", p.role, p.said())
		}
	}
}
