package consumerstorm

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/pgtest"
	"github.com/sagamill/sagamill/internal/testing/rabbittest"
)

var (
	flagRounds = flag.Int("storm.rounds", 0, "rounds of the storm; 0 means a normal one, of one round for each fault")
	flagSeed   = flag.Uint64("storm.seed", 0, "seed of the storm; 0 means a new one")
	flagOnly   = flag.String("storm.only", "", "only faults whose names contain this")
	flagBatch  = flag.Int("storm.batch", 0, "Options.BatchSize of the storm's consumers")
)

const (
	consumers = 3
	perRound  = 40 // keys
	strikes   = 3  // of a fault in a round

	// stormLimit is MaxAttempts. Every fault may cost the messages in hand one or two attempts. A message
	// without a planted fault never uses up the limit.
	stormLimit = 10

	betweenStrikes = 60 * time.Millisecond
)

// A fault is what strikes in a round.
type fault struct {
	name   string
	strike func(*storm)
	heal   func(*storm) // after each strike
}

// points are where a process dies in the course of its work.
var points = []string{"consumer/before-handler", "consumer/before-commit", "consumer/after-commit", "consumer/before-ack"}

func faults() []fault {
	all := []fault{
		{name: "consumer killed", strike: (*storm).kill},
		{name: "consumer hangs", strike: (*storm).hang, heal: (*storm).goOn},
		{name: "consumer hangs and is killed", strike: (*storm).hang, heal: (*storm).killHung},
		{name: "consumer leaves", strike: (*storm).leave},
		{name: "connections to the broker cut", strike: (*storm).cut},
		{name: "sessions ended", strike: (*storm).terminate},
		{name: "answers to COMMITs lost", strike: func(s *storm) { s.database.Lose(pgtest.LoseReply) }, heal: (*storm).loseNothing},
		{name: "COMMITs lost", strike: func(s *storm) { s.database.Lose(pgtest.LoseCommit) }, heal: (*storm).loseNothing},
		{name: "duplicates", strike: (*storm).repeat},
		{name: "everything at once", strike: (*storm).anything},
	}
	for _, point := range points {
		if failpoint.Enabled {
			all = append(all, fault{name: "killed at " + point, strike: func(s *storm) { s.add(fmt.Sprint(point, "=kill:", 1+s.rng.IntN(20))) }})
		}
	}
	return all
}

// A storm is a run of the test.
type storm struct {
	*field
	rng      *rand.Rand
	broker   *rabbittest.Proxy
	database *pgtest.Proxy
	hung     *process
	sent     []letter
	deaths   int
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	seed := *flagSeed
	for seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-storm.seed=%d", seed)
	s := &storm{rng: rand.New(rand.NewPCG(seed, 0))}
	s.field = newField(t, processConfig{Batch: *flagBatch, Limit: stormLimit, Lanes: 4, Prefetch: 16})
	s.broker = rabbittest.NewProxy(t, rabbittest.URL())
	s.database, _ = pgtest.NewProxy(t)
	s.config.AMQPURL = s.broker.URL()
	s.config.DatabaseURL = through(s.config.DatabaseURL, s.database.Addr())
	for range consumers {
		s.add("")
	}
	return s
}

// through returns databaseURL with another address.
func through(databaseURL, address string) string {
	scheme, rest, _ := strings.Cut(databaseURL, "://")
	slash := strings.IndexByte(rest, '/')
	user := rest[:strings.LastIndexByte(rest[:slash], '@')+1]
	return scheme + "://" + user + address + rest[slash:]
}

// After every fault, the invariants of the package hold, and everything comes to rest.
func TestStorm(t *testing.T) {
	if !failpoint.Enabled {
		t.Log("NOT TESTED: death at named points needs -tags=failpoints")
	}
	s := newStorm(t)
	for i, f := range s.draw() {
		s.round(i, f)
	}
	s.drain()
	s.allowForCopies()
	s.judge(Limits{Attempts: stormLimit, Drained: true, MayDie: s.mayDie})
	t.Logf("%d messages, %d of them duplicates; %d processes, %d of them died; %d entries into handlers",
		len(s.sent), len(s.sent)-len(s.published), len(s.started), s.deaths, s.count())
}

// draw returns the faults of the rounds: each once, then at random.
func (s *storm) draw() []fault {
	all := slices.DeleteFunc(faults(), func(f fault) bool { return !strings.Contains(f.name, *flagOnly) })
	all = needtest.Draw(s, all, func(f fault) string { return f.name })
	if len(all) == 0 {
		s.Fatalf("no fault's name contains %q", *flagOnly)
	}
	urn := slices.Clone(all)
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for len(all) < *flagRounds {
		all = append(all, urn[s.rng.IntN(len(urn))])
	}
	if *flagRounds > 0 {
		all = all[:*flagRounds]
	}
	return all
}

// round publishes messages, lets f strike among them and looks whether what must
// never be is there.
func (s *storm) round(number int, f fault) {
	s.Helper()
	begin := time.Now()
	letters := s.write(number)
	for i := range strikes {
		s.send(letters[i*len(letters)/strikes : (i+1)*len(letters)/strikes]...)
		f.strike(s)
		_ = backoff.Sleep(s.Context(), betweenStrikes)
		if f.heal != nil {
			f.heal(s)
		}
		s.deaths += s.replace()
	}
	s.await(f.name+": all has been taken from the queue", drainLimit, func() bool {
		s.deaths += s.replace()
		return s.waiting() == 0
	})
	s.disarm()
	s.Logf("round %d: %s, %v", number, f.name, time.Since(begin).Round(time.Millisecond))
}

// disarm lets those leave that were started to die at a point, and have not come
// there.
func (s *storm) disarm() {
	s.Helper()
	s.processes = slices.DeleteFunc(s.processes, func(p *process) bool {
		if p.armed && !p.Dead() {
			p.Terminate()
			_ = p.Wait(stopLimit) // it may die at its point yet
		}
		return p.armed || p.Dead()
	})
	for len(s.processes) < consumers {
		s.add("")
	}
}

// write returns the messages of a round: of both steps, with and without
// compensations, before and after their actions, twice, failing and not.
func (s *storm) write(number int) (letters []letter) {
	ends := []string{`{}`, `{}`, `{}`, `{}`, `{}`, `{}`, `{}`, `{}`, `{}`, `{"wait":20}`, `{"end":"flaky"}`, `{"end":"flaky"}`, `{"end":"panic"}`, `{"end":"fail"}`, `{"end":"terminal"}`}
	for i := range perRound {
		l := letter{key: fmt.Sprint("r", number, "-", i, "-"), step: []string{"pay", "ship"}[s.rng.IntN(2)], kind: Action, payload: ends[s.rng.IntN(len(ends))]}
		if l.step == "ship" { // a few of one key, which wait for each other
			l.key, l.n = fmt.Sprint("r", number, "-s", i%5, "-"), fmt.Sprint(i)
		}
		undo := l
		undo.kind, undo.payload = Compensation, []string{`{}`, `{"end":"flaky"}`}[s.rng.IntN(2)]
		switch s.rng.IntN(5) {
		case 0:
			letters = append(letters, l, undo)
		case 1:
			letters = append(letters, undo, l)
		case 2:
			letters = append(letters, l, undo, l, undo)
		case 3:
			letters = append(letters, undo)
		default:
			letters = append(letters, l)
		}
	}
	return letters
}

// allowForCopies tells the checker how often each message was published.
func (s *storm) allowForCopies() {
	for i, m := range s.published {
		for _, l := range s.sent {
			if l.id() == m.ID {
				s.published[i].Copies++
			}
		}
	}
}

func (s *storm) send(letters ...letter) {
	s.Helper()
	s.publish(letters...)
	s.sent = append(s.sent, letters...)
}

// mayDie reports whether a dead letter is of a handler that fails for ever, or of
// the compensation of one; or tells a person of an action that came after its
// compensation, and may have died in its handler.
func (s *storm) mayDie(p Parked) bool {
	if p.Reason == "superseded" {
		return true
	}
	return slices.ContainsFunc(s.published, func(m Message) bool {
		text := string(m.Payload)
		return m.Key == p.Key && m.Kind == Action && strings.Contains(text, `"end"`) && !strings.Contains(text, "flaky")
	}) && (p.Kind == Action || p.Reason == "action-dead")
}

func (s *storm) any() *process { return s.processes[s.rng.IntN(len(s.processes))] }

func (s *storm) kill() { s.any().Kill() }

func (s *storm) hang() {
	s.hung = s.any()
	s.hung.Stop()
}

func (s *storm) goOn()        { s.hung.Continue() }
func (s *storm) killHung()    { s.hung.Kill() }
func (s *storm) cut()         { s.broker.Cut() }
func (s *storm) loseNothing() { s.database.Lose(pgtest.LoseNothing) }

// leave retires a process that is not meant to die at a point meanwhile.
func (s *storm) leave() {
	s.Helper()
	for _, p := range s.processes {
		if !p.armed && !p.Dead() {
			s.retire(p)
			s.add("")
			return
		}
	}
}

// terminate ends the sessions of the consumers.
func (s *storm) terminate() {
	s.Helper()
	_, err := s.pool.Exec(s.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", s.config.Schema)
	if err != nil {
		s.Fatal(err)
	}
}

// repeat publishes something again that was published at any time before.
func (s *storm) repeat() {
	s.Helper()
	var again []letter
	for range perRound {
		again = append(again, s.sent[s.rng.IntN(len(s.sent))])
	}
	s.send(again...)
}

// anything lets several faults strike that need no healing.
func (s *storm) anything() {
	s.Helper()
	s.kill()
	s.repeat()
	s.cut()
	s.terminate()
}
