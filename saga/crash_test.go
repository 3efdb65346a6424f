//go:build failpoints

package saga_test

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sagamill/sagamill/saga"
)

// The boundaries of the work on a reply.
var replyPoints = []string{"consumer/before-handler", "consumer/before-commit", "consumer/after-commit", "consumer/before-ack"}

// The boundaries of the work of a timer.
var timerPoints = []string{"saga/after-timer-claim", "saga/before-timer-commit", "saga/after-timer-commit"}

// A crash is what happens to the first orchestrator of an instance.
type crash struct {
	point, action string
	hit           int // which time the point is come to
}

func (c crash) String() string { return fmt.Sprintf("%s=%s:%d", c.point, c.action, c.hit) }

// crashes are all points with an action, each at some of its hits.
func crashes(points []string, action string, hits ...int) (all []crash) {
	for _, point := range points {
		for _, hit := range hits {
			all = append(all, crash{point, action, hit})
		}
	}
	return all
}

// strike lets what is begun go on in a process that c happens to, and sees to it that
// somebody finishes it.
func (s *site) strike(c crash, finished func()) {
	s.t.Helper()
	first := s.child(c.String(), childConfig{})
	switch c.action {
	case "error":
		if c.point == "saga/after-timer-claim" {
			s.await("the instance is claimed, and nobody has it", func() bool { return s.one("SELECT max(tries)::text FROM "+s.schema+".saga") == "1" })
			s.expire()
		}
	case "kill":
		first.died()
		s.expire()
		s.orchestrate(saga.Options{})
	case "stop":
		first.stopped()
		first.lose()
		s.expire()
		s.orchestrate(saga.Options{})
		finished()
		first.Continue()
	}
	finished()
	if c.action != "kill" {
		first.retire() // with whatever it had in hand
	}
}

// Wherever the orchestrator dies, fails or hangs in the work on a reply, each step is done
// once and undone once, in the right order.
func TestTheWorkOnAReplyIsInterruptedAnywhere(t *testing.T) {
	t.Parallel()
	all := crashes(replyPoints, "kill", 1, 3, 4) // a step is done, one is rejected, one is undone
	all = append(all, crashes(replyPoints, "error", 2, 5)...)
	all = append(all, crashes(replyPoints, "stop", 3)...)
	for _, c := range all {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.participate()
			key := s.began(1, "no car")[0]
			s.strike(c, func() { s.until(key, saga.StatusCompensated) })
			s.exactly(key, tripUndone)
		})
	}
}

// exactly checks what was done for a key, and that nothing is left over.
func (s *site) exactly(key, want string) {
	s.t.Helper()
	if got := s.effects(key); got != want {
		s.t.Errorf("%s: effects %s, want %s", key, got, want)
	}
	if got := s.one("SELECT count(*)::text FROM " + s.schema + ".parked WHERE state = 'dead'"); got != "0" {
		s.t.Errorf("%s dead letters", got)
	}
	if got := s.one("SELECT sum(tries)::text FROM "+s.schema+".saga WHERE key = $1", key); got != "0" {
		s.t.Errorf("%s: %s tries are not forgotten", key, got)
	}
}

// A nested instance begins, is revoked and answers in transactions of the
// orchestrator, each once.
func TestTheWorkOnANestedSagaIsInterruptedAnywhere(t *testing.T) {
	t.Parallel()
	// The 1st message lets the trip begin, the 4th ends it, the 6th has it revoked; the 7th is
	// the revocation and the 10th the end of that.
	for _, c := range crashes([]string{"consumer/before-commit", "consumer/after-commit"}, "kill", 1, 4, 6, 7, 10) {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.participate()
			start(s.place, crashTour(s.schema), "k", tour{Item: "no guide"})
			s.strike(c, func() { s.until("k", saga.StatusCompensated) })
			s.exactly("k", tourUndone)
			if got := s.one("SELECT string_agg(path || ' ' || status, ', ' ORDER BY path) FROM " + s.schema + ".saga"); got != " compensated, 2.1 compensated" {
				t.Errorf("instances: %s", got)
			}
		})
	}
}

// Start is the caller's transaction: before its COMMIT there is no instance, behind it
// the saga runs, and starting it again finds it.
func TestTheCallerOfStartDies(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"test/before-commit", "test/after-commit"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.participate()
			s.orchestrate(saga.Options{})
			s.child(point+"=kill", childConfig{Start: "k"}).died()
			again := start(s.place, crashTrip(s.schema), "k", trip{Item: "x"})
			if want := point == "test/after-commit"; again.Existed != want {
				t.Errorf("started again: existed %t, want %t", again.Existed, want)
			}
			s.until("k", saga.StatusCompleted)
			s.exactly("k", tripDone)
		})
	}
}

// Wherever a timer's process dies, fails or hangs, the next one finishes the work
// once the lease is over. One that comes to itself then finds nothing to do, and
// changes nothing.
func TestATimerIsInterruptedAnywhere(t *testing.T) {
	t.Parallel()
	var all []crash
	for _, action := range []string{"kill", "error", "stop"} {
		all = append(all, crashes(timerPoints, action, 1)...)
	}
	for _, c := range all {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.participate()
			key := s.began(1, lateNote)[0]
			s.strike(c, func() { s.until(key, saga.StatusCompleted) })
			s.exactly(key, tripDone)
		})
	}
}

// A process that hung over the end of its lease must not undo what others have noted
// since: here, that the next step has an hour.
func TestAZombieOfATimerChangesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range append(crashes(timerPoints, "stop", 1), crash{"saga/after-timer-commit", "error", 1}) {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.participate("flight")
			start(s.place, patientTrip(s.schema), "k", trip{Item: lateNote})
			row := ""
			s.strike(c, func() {
				s.untilSQL("k", "coalesce(due_at > clock_timestamp() + interval '59 minutes', false)")
				row = cmp.Or(row, s.row("k"))
			})
			if got := s.row("k"); got != row {
				t.Errorf("the instance was %s\nand is now  %s", row, got)
			}
			s.exactly("k", "[flight note]")
		})
	}
}

// A timer waits for whoever has the instance locked, and sees then that it has moved:
// it has not begun anything meanwhile.
func TestATimerTakesTurnsWithOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.participate()
	key := s.began(1, lateNote)[0]
	c := s.child("saga/after-timer-claim=stop", childConfig{})
	c.stopped()
	err := pgx.BeginFunc(t.Context(), s.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "UPDATE "+s.schema+".saga SET revision = revision + 1 WHERE key = $1", key)
		c.Continue()
		s.await("the timer waits", func() bool {
			return s.one("SELECT count(*)::text FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'", c.name) == "1"
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c.retire()
	if strings.Contains(c.said(), "timer failed") {
		t.Errorf("the process said:\n%s", c.said())
	}
	s.expire()
	s.orchestrate(saga.Options{})
	s.until(key, saga.StatusCompleted)
	s.exactly(key, tripDone)
}

// row returns all that is stored of the outermost instance of a key.
func (s *site) row(key string) string {
	s.t.Helper()
	return s.one("SELECT saga::text FROM "+s.schema+".saga WHERE key = $1 AND path = ''", key)
}

// An instance whose timer kills its process does so as often as there are tries, and
// then is stuck. Those whose time has come with it are not held up by it for longer
// than a lease, nor stuck.
func TestATimerThatKillsTakesNobodyWithIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.participate()
	innocent := s.began(20, lateNote)
	deadly := s.began(2, deadlyNote)
	innocent = append(innocent, s.began(20, lateNote)...)
	deaths := 0
	for round := 0; round < 40 && s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE status = 'running'") != "0"; round++ {
		c := s.child("", childConfig{})
		s.await("it dies, or there is nothing left that is due", func() bool {
			return c.Dead() || s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE due_at < clock_timestamp() + interval '1 s' OR tries = 0 AND status = 'running'") == "0"
		})
		if c.Dead() {
			c.died()
			deaths++
		} else {
			c.retire()
		}
		s.expire()
	}
	if deaths < 10 || deaths > 10*len(deadly) { // the first time they may be together
		t.Errorf("%d processes have died, want at most 10 for each of %d", deaths, len(deadly))
	}
	for _, key := range deadly {
		if reason := s.until(key, saga.StatusStuck); reason != "saga: earlier attempts ended without a result, most likely with their process" {
			t.Errorf("%s: reason %q", key, reason)
		}
	}
	s.orchestrate(saga.Options{})
	for _, key := range innocent {
		s.until(key, saga.StatusCompleted)
		s.exactly(key, tripDone)
	}
}

// Nobody answers: whoever looks after the instance may die over it, too.
func TestWhoLooksAfterSilentInstancesDies(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"saga/before-timer-commit", "saga/after-timer-commit"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := s.began(1, "x")[0]
			s.child(point+"=kill", childConfig{Patience: time.Second}).died()
			s.orchestrate(saga.Options{Patience: time.Second, HousekeepPoll: 50 * time.Millisecond})
			if reason := s.until(key, saga.StatusStuck); reason != "step flight: no reply for 1s" {
				t.Errorf("reason %q", reason)
			}
			s.participate() // late, and welcome
			s.until(key, saga.StatusCompleted)
			s.exactly(key, tripDone)
		})
	}
}

// A local step that kills the process that handles the reply before it does so a
// few times, and then is a timer's: the instance is stuck in the end, others go on.
func TestALocalStepThatKillsTakesNobodyWithIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.participate()
	innocent := s.began(10, "x")
	deadly := s.began(1, deadlyTurn)
	innocent = append(innocent, s.began(10, lateNote)...)
	deaths := 0
	for ; deaths < 60; deaths++ {
		c := s.child("", childConfig{})
		s.await("it dies, or all have ended", func() bool {
			s.expire()
			return c.Dead() || s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE status = 'running'") == "0"
		})
		if !c.Dead() {
			c.retire()
			break
		}
		c.died()
	}
	if deaths > 20 {
		t.Errorf("%d processes have died", deaths)
	}
	s.until(deadly[0], saga.StatusStuck)
	for _, key := range innocent {
		s.until(key, saga.StatusCompleted)
		s.exactly(key, tripDone)
	}
	t.Logf("%d deaths", deaths)
}

// What is done of each saga when its last step says no.
const (
	tripDone   = "[flight note hotel car]"
	tripUndone = "[flight note hotel no hotel no note no flight]"
	tourUndone = "[visa flight note hotel car no car no hotel no note no flight no visa]"
)

// began starts n trips with an item, and returns their keys.
func (s *site) began(n int, item string) (keys []string) {
	s.t.Helper()
	for i := range n {
		keys = append(keys, fmt.Sprint(item, " ", i))
	}
	d := crashTrip(s.schema)
	for _, key := range keys {
		start(s.place, d, key, trip{Item: item})
	}
	return keys
}

// expire lets the leases of timers run out.
func (s *site) expire() {
	s.t.Helper()
	if _, err := s.db.Exec(s.t.Context(), "UPDATE "+s.schema+".saga SET due_at = clock_timestamp() WHERE tries > 0 AND due_at IS NOT NULL"); err != nil {
		s.t.Fatal(err)
	}
}

// named returns the database's address with sessions that can be told from others.
func named(database, name string) string {
	u, err := url.Parse(database)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	return u.String()
}
