package handover

import (
	"testing"
	"time"

	"github.com/sagamill/sagamill/internal/backoff"
)

// A process whose path to the database is cut hands its queue over, and gets it back when the other one is cut.
func TestHandover(t *testing.T) {
	t.Parallel()
	for _, how := range []fault{reset, blackHole, answersLost} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			f := newField(t)
			first := f.start("first")
			f.publish(3)
			f.await("the first process works", func() bool { return f.count("first") == 3*keys })
			second := f.start("second")
			f.publish(20)
			f.cutInHandler(first, how)
			began := f.count("second")
			took := f.await("the second process works", func() bool { return f.count("second") > began })
			f.publish(20)
			f.await("the second process works on", func() bool { return f.count("second") > began+10*keys })
			t.Logf("the second process went on after %s", took.Round(10*time.Millisecond))
			if first.Ready() || !second.Ready() || !first.Counters().Paused {
				t.Errorf("without the database: ready %t; with it: ready %t", first.Ready(), second.Ready())
			}
			first.path.set(none)
			f.await("the first process is ready again", first.Ready)
			f.publish(20)
			f.cutInHandler(second, how)
			began = f.count("first")
			f.publish(20)
			took = f.await("the first process works again", func() bool { return f.count("first") > began })
			t.Logf("and the first one after %s", took.Round(10*time.Millisecond))
			second.path.set(none)
			f.judge()
			t.Logf("%d and %d hand-overs", first.handovers(), second.handovers()) // a slow machine may cause further ones
		})
	}
}

// While nobody has the database nobody consumes, which costs the messages one delivery for each hand-over. After it all
// go on.
func TestNobodyHasTheDatabase(t *testing.T) {
	t.Parallel()
	f := newField(t)
	both := []*process{f.start("first"), f.start("second")}
	f.publish(2)
	f.await("a process works", func() bool { return f.count("") == 2*keys })
	for _, p := range both {
		p.path.set(reset)
	}
	f.publish(10)
	f.await("both have handed over", func() bool { return both[0].handovers() > 0 && both[1].handovers() > 0 })
	before := f.count("")
	served := func() bool {
		for _, p := range both {
			for _, s := range p.Counters().Subscriptions {
				if s.Served {
					return true
				}
			}
		}
		return false
	}
	for range 12 { // longer than the shortest pause
		_ = backoff.Sleep(t.Context(), time.Second)
		if served() || both[0].Ready() || both[1].Ready() {
			t.Fatal("a process consumes without its database")
		}
	}
	for _, p := range both {
		p.path.set(none)
	}
	f.judge()
	f.await("both are ready", func() bool { return both[0].Ready() && both[1].Ready() })
	handovers := both[0].handovers() + both[1].handovers()
	if before != 2*keys || f.deliveries() > handovers {
		t.Errorf("%d steps without a database, deliveries counted up to %d over %d hand-overs", before-2*keys, f.deliveries(), handovers)
	}
}

// A path that comes and goes hands over at most once in ten seconds.
func TestAFlappingPath(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.ordered = true
	p := f.start("first")
	began := time.Now()
	for time.Since(began) < 25*time.Second {
		f.publish(1)
		p.path.set(blackHole)
		_ = backoff.Sleep(t.Context(), 3*time.Second)
		p.path.set(none)
		_ = backoff.Sleep(t.Context(), 500*time.Millisecond)
	}
	if most := 1 + int(time.Since(began)/(10*time.Second)); p.handovers() < 1 || p.handovers() > most {
		t.Errorf("%d hand-overs, want 1 to %d", p.handovers(), most)
	}
	f.judge()
}
