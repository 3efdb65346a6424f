package fault

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
)

// A journal is what a site has logged.
type journal struct {
	mu     sync.Mutex
	events []record.Event
}

func (j *journal) add(e record.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// openSite builds the programs and starts a site.
func openSite(t *testing.T) (*site.Site, *journal) {
	t.Helper()
	programs, err := site.Build(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("", "chaos-") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	if err := os.Chmod(work, 0o755); err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	s, err := site.Open(t.Context(), site.Options{Dir: t.TempDir(), Work: work, Programs: programs, Log: j.add, Fuses: Fuses(1)})
	if errors.Is(err, site.ErrAbsent) {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, j
}

// each is a plan with every fault once, the broker's own last: they take longest.
func each() (plan []record.Planned) {
	const apart = 300 * time.Millisecond
	r := stream(1, faultStream)
	add := func(d draft) {
		d.N, d.At, d.For = len(plan)+1, time.Duration(len(plan))*apart, min(d.For, time.Second)
		plan = append(plan, d.Planned)
	}
	add(draft{Planned: record.Planned{Fault: Kill, Target: "order-1"}})
	var last []draft
	for i := range kinds {
		d := kinds[i].draw(r, shortStorm)
		if kinds[i].takes == brokerBoot {
			last = append(last, d)
		} else {
			add(d)
		}
	}
	for _, d := range last {
		add(d)
	}
	return plan
}

// Every fault can be done to a real site, and what it has done can be healed.
func TestEveryFaultIsCarriedOutAndHealed(t *testing.T) {
	t.Parallel()
	s, j := openSite(t)
	plan := each()
	if err := Carry(t.Context(), s, plan, func() int { return 1 }); err != nil {
		t.Fatal(err)
	}
	if err := s.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := map[string]record.Event{}
	for _, e := range j.events {
		if e.N > 0 {
			done[e.Fault] = e
		}
		if e.Fault == record.Exit && strings.HasPrefix(e.Args, "by itself") {
			t.Errorf("%+v", e)
		}
	}
	for _, p := range plan {
		switch e, ok := done[p.Fault]; {
		case !ok:
			t.Errorf("%s was not carried out", p.Fault)
		case e.Err != "" || e.N != p.N || e.Target != p.Target || e.Open != 1 || e.Until < e.At:
			t.Errorf("%+v was carried out as %+v", p, e)
		default:
			t.Logf("%s %s (%s) struck %d in %s", e.Fault, e.Target, e.Args, e.Hits, (e.Until - e.At).Round(time.Millisecond))
		}
	}
	if want := len(kinds) + 1; len(done) != want {
		t.Errorf("carried out: %v, want %d faults", slices.Sorted(maps.Keys(done)), want)
	}
	for _, stopped := range s.Stop(t.Context()) {
		if stopped.Code != 0 {
			t.Errorf("%s ended with %d after %s", stopped.Name, stopped.Code, stopped.Took)
		}
	}
}

// A plan that somebody has misspelt is not half carried out.
func TestCarryRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	if err := Carry(t.Context(), nil, []record.Planned{{Fault: "earthquake"}}, nil); err == nil || !strings.Contains(err.Error(), "earthquake") {
		t.Errorf("Carry = %v, want an error that names the fault", err)
	}
}
