//go:build failpoints

package matrixtest

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/testing/needtest"
	"github.com/sagamill/sagamill/internal/testing/proctest"
)

// A stage is how far a request has got at a failpoint. What must be true after the
// process was struck there follows from it, and from the store.
type stage struct {
	point   string
	columns []string // that have such a point
	do      string   // what the first request asks of its handler
	claimed bool     // the key is claimed
	ran     bool     // the handler has run
	ended   bool     // its transaction is over, or it needs none
	record  string   // what is durable of the outcome, if anything is
	fails   string   // what the client sees of an error there
	leaves  string   // and the record that it leaves
}

var (
	anyStore  = []string{pg, inline, onRedis, hybrid, memory}
	inRecords = []string{pg, hybrid}         // whose claim is a row
	inTx      = []string{pg, inline, hybrid} // whose outcome commits with the handler's writes
)

const (
	failed      = "failed"
	tombstone   = "tombstone"
	unavailable = "503 store-unavailable"
	internal    = "500 internal"
)

// stages are where a request can be struck, one or more for each failpoint.
var stages = []stage{
	{point: "idemkey/after-begin", columns: anyStore, claimed: true, fails: internal, leaves: failed},
	{point: "idemkey/before-keep", columns: anyStore, claimed: true, ran: true, fails: internal, leaves: failed},
	{point: "idemkey/before-keep", columns: anyStore, do: doReject, claimed: true, ran: true, fails: internal, leaves: failed},
	{point: "idemkey/after-keep", columns: anyStore, claimed: true, ran: true, record: completed, fails: unavailable, leaves: completed},
	{point: "idemkey/after-keep", columns: anyStore, do: doReject, claimed: true, ran: true, record: completed, fails: unavailable, leaves: completed},
	{point: "idemkey/before-release", columns: anyStore, do: doFail, claimed: true, ran: true, fails: "500", leaves: inProgress},
	{point: "idemkey/after-release", columns: anyStore, do: doFail, claimed: true, ran: true, record: failed, fails: "500", leaves: failed},
	{point: "idemkey/after-bury", columns: []string{onRedis}, claimed: true, ran: true, record: tombstone, fails: unavailable, leaves: tombstone},

	{point: "idempg/after-claim", columns: inRecords, claimed: true, fails: unavailable, leaves: inProgress},
	{point: "idempg/before-commit", columns: inTx, claimed: true, ran: true, fails: "500 commit-failed", leaves: failed},
	{point: "idempg/after-commit", columns: inTx, claimed: true, ran: true, record: completed, fails: "201", leaves: completed},
	{point: "idempg/after-rollback", columns: inTx, do: doReject, claimed: true, ran: true, ended: true, fails: unavailable, leaves: inProgress},

	{point: "idemredis/after-claim", columns: []string{onRedis}, claimed: true, fails: unavailable, leaves: inProgress},
	{point: "idemredis/before-save", columns: []string{onRedis}, claimed: true, ran: true, fails: "201", leaves: inProgress},
	{point: "idemredis/after-save", columns: []string{onRedis}, claimed: true, ran: true, record: completed, fails: unavailable, leaves: completed},

	{point: "idemhybrid/after-lock", columns: []string{hybrid}, fails: unavailable, leaves: absent},
	{point: "idemhybrid/after-claim", columns: []string{hybrid}, claimed: true, fails: unavailable, leaves: failed},
	{point: "idemhybrid/before-free", columns: []string{hybrid}, claimed: true, ran: true, record: completed, fails: "201", leaves: completed},
}

// Every failpoint of the middleware and of its stores strikes with each action, on
// every store that has it, and it is what the server was killed, stopped, delayed or
// failed by. There is one effect for each key where the store has transactions, no
// response before its outcome is durable, and one response from then on.
func TestEveryFailpoint(t *testing.T) {
	t.Parallel()
	base := newSettings(t)
	for _, p := range failpoint.Points("idemkey", "idempg", "idemredis", "idemhybrid") {
		if !slices.ContainsFunc(stages, func(s stage) bool { return s.point == p.Name }) {
			t.Errorf("%s is at no stage", p.Name)
		}
	}
	for _, s := range stages {
		for _, action := range failpoint.Actions() {
			for _, name := range s.columns {
				if name == memory && (action == "stop" || action == "delay") {
					continue // its one process would have to serve the retry meanwhile
				}
				t.Run(strings.Join([]string{s.point, s.do, action, name}, " "), func(t *testing.T) {
					t.Parallel()
					needtest.Share(t)
					s.strike(t, base, columnOf(name), action)
				})
			}
		}
	}
}

// strike lets action strike a server on col at s, and compares what is true then with
// what must be.
func (s *stage) strike(t *testing.T, base settings, col *column, action string) {
	c := newCell(t, base, col, strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()), func(set *settings) {
		if set.Streaming = s.record == tombstone; action == "stop" || action == "delay" {
			set.Grace = time.Millisecond
		}
	})
	if s.do == doReject {
		c.do = doReject
	}
	switch action {
	case "kill", "error":
		want := s.after(col, broken, s.record, c.do)
		if action == "error" {
			want = s.after(col, s.fails, s.leaves, c.do)
		}
		c.expect(c.run(func(c *cell) {
			c.answered(c.send(&c.serve(s.point+"="+action).instance, s.do))
			if action == "kill" {
				c.died()
			}
		}), want)
	case "stop":
		// An owner locks its row after a quarter of the grace: one that is stopped about
		// then has the lock, or not.
		if got := c.run(s.stopped); got != s.overtaken(col, c.do, true) {
			c.expect(got, s.overtaken(col, c.do, false))
		}
	case "delay":
		c.bear(s, c.run(s.delayed))
	}
	c.struck(s.point + "=" + action)
}

func (c *cell) expect(got, want outcome) {
	c.Helper()
	if got != want {
		c.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// struck checks that the fault came about, and no other.
func (c *cell) struck(want string) {
	c.Helper()
	got, err := failpoint.Struck(c.first.log)
	if err != nil || !slices.Equal(got, []string{want}) {
		c.Errorf("%q struck, %v; want %s", got, err, want)
	}
}

// answers are what a request and its retry get when nothing is wrong.
func (s *stage) answers(do string) (first, retry string) {
	first, retry = "201", "201"
	switch s.do {
	case doReject:
		first = "400"
	case doFail:
		first = "500"
	}
	if do == doReject {
		retry = "400"
	}
	return first, retry
}

// after returns what must be true when the first client has seen first and the store
// has record, or nothing of the outcome.
func (s *stage) after(col *column, first, record, do string) outcome {
	o := outcome{first: first, record: record, runs: count(s.ran)}
	if record == "" {
		o.record = absent
		if s.claimed {
			o.record = inProgress
		}
	}
	if col.traceless && (o.record == inProgress || o.record == failed) {
		o.record = absent
	}
	if o.record == inProgress || o.record == absent && first == broken && col.name == hybrid {
		o.soon = busy // the lock is taken, too
	}
	kept := o.record == completed || o.record == tombstone
	if col.name == memory { // nobody sees what it has, and that is gone with the process
		o.record, o.soon, kept = "", "", kept && first != broken
	}
	_, o.retry = s.answers(do)
	o.left = s.effects(col, o.runs, count(kept))
	switch {
	case o.record == tombstone:
		o.retry = "410 response-not-retained"
	case kept:
		o.retry += " replay"
	default:
		o.runs++
	}
	o.rows = s.effects(col, o.runs, 1)
	return o
}

// effects returns how many business rows there are after so many runs, if kept of them
// has ended well.
func (s *stage) effects(col *column, runs, kept int) int {
	switch {
	case col.separate:
		return runs
	case s.do == doReject:
		return 0
	}
	return kept
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// overtaken returns what must be true when a process was stopped at s for longer than
// its lease, with a retry at that time, and went on.
func (s *stage) overtaken(col *column, do string, locked bool) outcome {
	first, retry := s.answers(do)
	o := outcome{first: first, record: completed, soon: retry, retry: retry + " replay", runs: 1 + count(s.ran)}
	protected := !col.separate && !s.ended && (s.ran || s.claimed && (col.traceless || locked)) // by its row's lock
	switch {
	case s.record == failed: // it was over
	case s.record == tombstone:
		o.record, o.soon, o.retry, o.runs = tombstone, "410 response-not-retained", "410 response-not-retained", 1
	case s.record != "":
		o.soon, o.runs = o.retry, 1
	case protected && s.do == doFail:
		o.soon, o.record, o.retry = busy, failed, retry
		if col.traceless {
			o.record = absent
		}
	case protected:
		o.soon, o.runs = busy, 1
	case !s.claimed:
		o.first = o.retry
	case !col.separate:
		o.first = busy // what it did is rolled back
	case !s.ran:
		o.runs++
	}
	o.left = s.effects(col, o.runs, count(o.record == completed))
	if o.record == failed || o.record == absent {
		o.left = s.effects(col, 1, 0)
	}
	o.rows = s.effects(col, o.runs, 1)
	return o
}

// stopped stops the process at s, past its lease, and lets it go on when another has
// served a retry.
func (s *stage) stopped(c *cell) {
	c.Helper()
	first := c.begin(c.serve(s.point+"=stop"), s.do)
	c.until("the process hangs", func() (bool, error) { return proctest.Stopped(c.first.cmd.Process.Pid), nil })
	c.release()
	c.overtaking()
	select {
	case a := <-first:
		c.Errorf("the client has heard %q of a process that hangs", a.text)
	default:
	}
	c.first.signal(syscall.SIGCONT)
	c.answered(<-first)
}

// delayed holds the process up at s, past its lease, with a retry at that time.
func (s *stage) delayed(c *cell) {
	c.Helper()
	first := c.begin(c.serve(s.point+"=delay"), s.do)
	c.until("the process is held up", func() (bool, error) {
		struck, err := failpoint.Struck(c.first.log)
		return len(struck) > 0, err
	})
	c.release()
	c.overtaking()
	c.answered(<-first)
}

// release ends what protects a first request that is held up, beside a grace that is
// over by then and a row's lock.
func (c *cell) release() {
	c.Helper()
	if c.direct.redis == nil {
		return
	}
	key := c.direct.hash(c.key)
	var err error
	if c.Column == hybrid {
		err = c.direct.redis.Del(c.Context(), key).Err()
	} else {
		err = hashLapse(c.Context(), c.direct, c.key)
	}
	if err != nil {
		c.Errorf("let the lease end: %v", err)
	}
}

// bear checks an outcome that depends on who was faster.
func (c *cell) bear(s *stage, got outcome) {
	c.Helper()
	first, retry := s.answers(c.do)
	for what, of := range map[string]struct {
		got  string
		want []string
	}{
		"the first client sees": {got.first, []string{first, busy, retry + " replay"}},
		"its retry sees":        {got.soon, []string{retry, busy, retry + " replay", "410 response-not-retained"}},
		"a later one sees":      {got.retry, []string{retry, retry + " replay", "410 response-not-retained"}},
	} {
		if !slices.Contains(of.want, of.got) {
			c.Errorf("%s %q, want one of %q", what, of.got, of.want)
		}
	}
	if !c.direct.column.separate && got.rows != s.effects(c.direct.column, got.runs, 1) || got.runs < 1 || got.runs > 3 {
		c.Errorf("%d business rows of %d runs: %+v", got.rows, got.runs, got)
	}
}
