//go:build failpoints

package saga_test

import (
	"context"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/saga"
)

// strikers are the tests that strike at each point.
var strikers = map[string]string{
	"saga/after-instance":         "TestFaultsOfAStart",
	"saga/after-start":            "TestFaultsOfAStart",
	"saga/after-timer-claim":      "TestFaultsOfAnOrchestrator",
	"saga/before-timer-commit":    "TestFaultsOfAnOrchestrator",
	"saga/after-timer-commit":     "TestFaultsOfAnOrchestrator",
	"saga/before-decision-commit": "TestFaultsOfADecision",
	"saga/after-decision-commit":  "TestFaultsOfADecision",
}

// strikersFaults are the faults at the points of a test.
func strikersFaults(test string) (all []faulttest.Fault) {
	for _, f := range faulttest.Faults("saga") {
		if strikers[f.Name] == test {
			all = append(all, f)
		}
	}
	return all
}

func timerFaults() []faulttest.Fault { return strikersFaults("TestFaultsOfAnOrchestrator") }

// replyHits are which replies are struck, by action. Of five, the first and the second
// end a step, the third says that there is no car, the fourth that the hotel is undone, so that
// the next compensation follows, and the fifth ends the saga.
var replyHits = map[string][]int{"kill": {1, 3, 4, 5}, "error": {2, 5}, "stop": {3, 4}, "delay": {3}}

// replyPoints are those of package consumer on a reply's way.
var replyPoints = map[string]bool{
	"consumer/before-handler": true, "consumer/before-commit": true, "consumer/after-commit": true, "consumer/before-ack": true, "consumer/after-ack": true,
}

func replyFaults() (all []faulttest.Fault) {
	for _, f := range faulttest.Faults("consumer") {
		for _, hit := range replyHits[f.Action] {
			if replyPoints[f.Name] {
				all = append(all, f.At(hit))
			}
		}
	}
	return all
}

// nestedHits are messages of a nested saga: the first lets it begin, the 4th ends it, the
// 6th has it revoked; the 7th is the revocation and the 10th the end of that.
var nestedHits = []int{1, 4, 6, 7, 10}

func nestedFaults() (all []faulttest.Fault) {
	for _, hit := range nestedHits {
		for _, point := range []string{"consumer/before-commit", "consumer/after-commit"} {
			all = append(all, fault(point, "kill").At(hit))
		}
	}
	return all
}

// Wherever an orchestrator is struck in the work on a reply, on a nested saga or on a
// timer, each step is done once and undone once, in the right order, and nothing is left
// over. One that hung while another took over changes nothing when it wakes.
//
// It is not parallel with other tests: it has all [sites] to itself, and its cases share
// them.
func TestFaultsOfAnOrchestrator(t *testing.T) {
	needtest.Slow(t)
	faulttest.Unreached(t, strikers, "saga")
	stock := faulttest.NewStock(cap(sites), func() *site {
		s := newSite(t)
		s.participate()
		return s
	})
	run := func(name string, faults []faulttest.Fault, strike func(s *site, f faulttest.Fault, key string)) {
		for _, f := range faults {
			t.Run(name+" "+f.String(), func(t *testing.T) {
				t.Parallel()
				needtest.Share(t)
				s := stock.Borrow(t).lend(t)
				strike(s, f, t.Name())
				s.empty()
			})
		}
	}
	run("reply", replyFaults(), func(s *site, f faulttest.Fault, key string) {
		start(s.place, crashTrip(s.schema), key, trip{Item: "no car"})
		s.strike(f, func() { s.until(key, saga.StatusCompensated) })
		s.exactly(key, tripUndone)
	})
	run("nested", nestedFaults(), func(s *site, f faulttest.Fault, key string) {
		start(s.place, crashTour(s.schema), key, tour{Item: "no guide"})
		s.strike(f, func() { s.until(key, saga.StatusCompensated) })
		s.exactly(key, tourUndone)
		if got := s.one("SELECT string_agg(path || ' ' || status, ', ' ORDER BY path) FROM " + s.schema + ".saga"); got != " compensated, 2.1 compensated" {
			s.t.Errorf("instances: %s", got)
		}
	})
	run("timer", timerFaults(), func(s *site, f faulttest.Fault, key string) {
		start(s.place, crashTrip(s.schema), key, trip{Item: lateNote})
		s.strike(f, func() { s.until(key, saga.StatusCompleted) })
		s.exactly(key, tripDone)
	})
}

// lend returns s for one case, as if nothing had ever happened there. What the case runs
// ends with it.
func (s *site) lend(t *testing.T) *site {
	t.Helper()
	p := &place{t: t, db: s.db, schema: s.schema, relay: s.relay}
	p.ctx, p.stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		p.stop()
		p.wg.Wait()
	})
	for _, table := range []string{"saga", "inbox", "parked", "effect"} {
		if _, err := s.db.Exec(t.Context(), "DELETE FROM "+s.schema+"."+table); err != nil {
			t.Fatal(err)
		}
	}
	return &site{place: p, prefix: s.prefix, broker: s.broker, control: s.control}
}

// empty fails the test if there are replies that no orchestrator acks. One that stops gives back what it has
// not begun, so another one settles that first.
func (s *site) empty() {
	s.t.Helper()
	s.stop()
	s.wg.Wait()
	given := s.waiting()
	if given == 0 {
		return
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	o := s.orchestrate(saga.Options{})
	s.await("the replies that were given back are settled", func() bool { return settledBy(o) >= given })
	s.stop()
	s.wg.Wait()
	if n := s.waiting(); n > 0 {
		s.t.Errorf("%d replies that nobody acks", n)
	}
}

// settledBy returns how many replies o has settled: it acks them, also if it is stopped.
func settledBy(o *saga.Orchestrator) (n int) {
	for _, step := range o.Consumer().Counters().Steps {
		for outcome, count := range step.Outcomes {
			if outcome != consumer.OutcomeUndecided && outcome != consumer.OutcomeUndone {
				n += int(count)
			}
		}
	}
	return n
}

// waiting returns how many replies wait once no orchestrator has any in hand.
func (s *site) waiting() (n int) {
	s.t.Helper()
	s.await("no orchestrator is left", func() bool {
		waiting, consumers := s.queued()
		n = waiting
		return consumers == 0
	})
	return n
}

// queued returns how many replies wait in the queues, and how many consumers those
// have.
func (s *site) queued() (waiting, consumers int) {
	s.t.Helper()
	for _, name := range []string{"trip", "tour"} {
		queue := s.topology(orchestrators).Queue.GenerateName(saga.Topic(name))
		q, err := s.control.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		waiting, consumers = waiting+q.Messages, consumers+q.Consumers
	}
	return waiting, consumers
}

// strike lets work continue in a process that f strikes, and has another process finish it.
func (s *site) strike(f faulttest.Fault, finished func()) {
	s.t.Helper()
	first := s.child(f, childConfig{})
	first.Struck()
	switch f.Action {
	case "error":
		s.expire()
	case "kill":
		s.expire()
		s.orchestrate(saga.Options{})
	case "delay": // for so long that others get what it has in hand
		s.broker.Cut()
		s.expire()
		s.orchestrate(saga.Options{})
	case "stop":
		s.broker.Cut()
		faulttest.EndIdle(s.t, s.db, s.schema, first.name)
		s.expire()
		s.orchestrate(saga.Options{})
		finished()
		first.Continue()
	default:
		s.t.Fatalf("no case for the action %s", f.Action)
	}
	finished()
	if f.Action != "kill" {
		first.Retire() // with whatever it had in hand
	}
}

// The effects of each saga, with those of OnEnd. Within a tour a trip completes, and is undone later.
const (
	tripDone   = "[flight note hotel car completed]"
	tripUndone = "[flight note hotel no hotel no note no flight compensated]"
	tourUndone = "[visa flight note hotel car completed no car no hotel no note no flight compensated no visa]"
)

// exactly checks what was done for a key, that nothing was sent twice, and that nothing is
// left over.
func (p *place) exactly(key, want string) {
	p.t.Helper()
	if got := p.effects(key); got != want {
		p.t.Errorf("%s: effects %s, want %s", key, got, want)
	}
	p.none("messages that were sent twice", "SELECT FROM {schema}.outbox WHERE key = $1 GROUP BY topic, type, step, n HAVING count(*) > 1", key)
	p.rests(key)
}

// rests checks that nothing is left over for a key.
func (p *place) rests(key string) {
	p.t.Helper()
	p.none("parked messages", "SELECT FROM {schema}.parked WHERE key = $1", key)
	p.none("tries that are not forgotten", "SELECT FROM {schema}.saga WHERE key = $1 AND tries > 0", key)
	p.none("steps that are not at rest", "SELECT FROM {schema}.inbox WHERE key = $1 AND state NOT IN ('done', 'refused', 'void', 'compensated')", key)
	faulttest.AtRest(p.t, p.db, p.schema)
}

// none fails the test if a query about a key has rows.
func (p *place) none(what, query, key string) {
	p.t.Helper()
	tag, err := p.db.Exec(p.t.Context(), strings.ReplaceAll(query, "{schema}", p.schema), key)
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	if n := tag.RowsAffected(); n > 0 {
		p.t.Errorf("%s: %d %s", key, n, what)
	}
}
