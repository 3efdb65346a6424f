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

	"github.com/sagamill/sagamill/internal/testing/faulttest"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/saga"
)

// A process that hung over the end of its lease must not undo what others have noted
// since: here, that the next step has an hour.
func TestAZombieOfATimerChangesNothing(t *testing.T) {
	t.Parallel()
	for _, f := range timerFaults() {
		if f.Action != "stop" && f != fault("saga/after-timer-commit", "error") {
			continue // it does not come to itself, or too soon
		}
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.participate("flight")
			start(s.place, patientTrip(s.schema), "k", trip{Item: lateNote})
			row := ""
			s.strike(f, func() {
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

// A timer's failure is noted only if the instance is unchanged since its claim, and only by the process that
// claimed it last.
func TestAnOvertakenTimerPostponesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	o, err := saga.NewOrchestrator(s.db, nil, definitions(s.schema), &saga.Options{Schema: s.schema, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	start(s.place, patientTrip(s.schema), "k", trip{Item: "x"})
	s.exec("UPDATE {schema}.saga SET revision = 5, tries = 2")
	row := s.row("k")
	for _, claimed := range []struct{ revision, try int }{{4, 2}, {5, 1}} {
		saga.Postpone(o, "tenant", "k", claimed.revision, claimed.try)
		if got := s.row("k"); got != row {
			t.Errorf("claimed as %+v, the instance was %s\nand is now  %s", claimed, row, got)
		}
	}
	saga.Postpone(o, "tenant", "k", 5, 2)
	if got := s.one("SELECT reason FROM " + s.schema + ".saga"); got != "it failed" {
		t.Errorf("reason %q after a failure that nobody has overtaken", got)
	}
}

// A timer waits for the transaction that has the instance locked, and then sees that the instance has moved. It
// has begun nothing meanwhile.
func TestATimerTakesTurnsWithOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.participate()
	key := s.began(1, lateNote)[0]
	c := s.child(fault("saga/after-timer-claim", "stop"), childConfig{})
	c.Struck()
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
	c.Retire()
	if strings.Contains(c.Said(), "timer failed") {
		t.Errorf("the process said:\n%s", c.Said())
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
// then is stuck. Those whose time has come with it wait for it no longer
// than a lease, and are not stuck.
func TestATimerThatKillsItsProcessCostsNoOtherInstance(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	s := newSite(t)
	s.participate()
	innocent := s.began(20, lateNote)
	deadly := s.began(2, deadlyNote)
	innocent = append(innocent, s.began(20, lateNote)...)
	deaths := 0
	for round := 0; round < 40 && s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE status = 'running'") != "0"; round++ {
		c := s.child(faulttest.Fault{}, childConfig{})
		s.await("it dies, or there is nothing left that is due", func() bool {
			return c.Dead() || s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE due_at < clock_timestamp() + interval '1 s' OR tries = 0 AND status = 'running'") == "0"
		})
		c.Terminate()
		if c.Wait(30*time.Second) == -1 { // also by what it had in hand in the end
			c.Killed()
			deaths++
		} else {
			c.Retire()
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

// No participant answers, and the process whose timer handles the instance dies over it.
func TestTheTimerOfASilentInstanceKillsItsProcess(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"saga/before-timer-commit", "saga/after-timer-commit"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			key := s.began(1, "x")[0]
			s.child(fault(point, "kill"), childConfig{Patience: time.Second}).Struck()
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
func TestALocalStepThatKillsItsProcessCostsNoOtherInstance(t *testing.T) {
	t.Parallel()
	needtest.Slow(t)
	s := newSite(t)
	s.participate()
	innocent := s.began(10, "x")
	deadly := s.began(1, deadlyTurn)
	innocent = append(innocent, s.began(10, lateNote)...)
	deaths := 0
	for ; deaths < 60; deaths++ {
		c := s.child(faulttest.Fault{}, childConfig{})
		s.await("it dies, or all have ended", func() bool {
			s.expire()
			return c.Dead() || s.one("SELECT count(*)::text FROM "+s.schema+".saga WHERE status = 'running'") == "0"
		})
		if !c.Dead() {
			c.Retire()
			break
		}
		c.Killed()
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
