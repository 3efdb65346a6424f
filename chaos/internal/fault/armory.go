package fault

import (
	"bufio"
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/chaos/internal/site"
)

// An Armory chooses the failpoints of each process start: first by the seed, and in the late phase those that
// have not struck yet. RunEncore also repeats faults that have struck no process at work.
type Armory struct {
	seed   uint64
	seeded func(process string, start int) string
	log    string

	mu    sync.Mutex
	late  bool
	turns int
	met   map[string]bool // faults that struck while requests were under way
	n     int             // the greatest number of a planned fault
}

// NewArmory returns the armory of a run whose failpoints write to the file log.
func NewArmory(seed uint64, log string) *Armory {
	return &Armory{seed: seed, seeded: PlanFuses(seed), log: log, met: map[string]bool{}}
}

// NoteEvent counts an event of the site for the armory.
func (a *Armory) NoteEvent(e record.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n = max(a.n, e.N)
	if e.Err == "" && e.Hits > 0 && e.Open > 0 {
		a.met[e.Fault] = true
	}
}

// FusesFor returns SAGAMILL_FAILPOINTS of a process's start.
func (a *Armory) FusesFor(process string, start int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.late {
		if missing := ofService(site.ServiceOf(process), a.missingPoints()); len(missing) > 0 {
			a.turns++
			return armMissing(missing, a.turns)
		}
	}
	return a.seeded(process, start)
}

// armMissing returns as many of the missing strikes as fit into one life: one action at each point, and at most
// one kill or stop. turn decides which strike comes first.
func armMissing(missing []string, turn int) string {
	var fuses []string
	lethal, taken := false, map[string]bool{}
	for i := range missing {
		fuse := missing[(turn+i)%len(missing)]
		name, action, _ := strings.Cut(fuse, "=")
		ends := action == "kill" || action == "stop"
		if taken[name] || ends && lethal {
			continue
		}
		taken[name], lethal = true, lethal || ends
		fuses = append(fuses, fuse)
	}
	return strings.Join(fuses, ";")
}

// ofService returns the strikes at points that the service's processes reach.
func ofService(service string, strikes []string) (of []string) {
	for _, fuse := range strikes {
		if name, _, _ := strings.Cut(fuse, "="); slices.ContainsFunc(pointsOf(service), func(p point) bool { return p.name == name }) {
			of = append(of, fuse)
		}
	}
	return of
}

// BeginLatePhase makes the armory arm missing strikes from now on.
func (a *Armory) BeginLatePhase() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late = true
}

// missingPoints returns the required strikes, as point=action, that the log lacks.
func (a *Armory) missingPoints() (missing []string) {
	seen := map[string]bool{}
	if file, err := os.Open(a.log); err == nil {
		for lines := bufio.NewScanner(file); lines.Scan(); {
			seen[lines.Text()] = true
		}
		_ = file.Close()
	}
	for _, name := range Required() {
		if strings.Contains(name, "=") && !seen[name] {
			missing = append(missing, name)
		}
	}
	return missing
}

// MissingPoints returns the required strikes that have not happened, as point=action.
func (a *Armory) MissingPoints() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.missingPoints()
}

// The times of an encore. Killing a process before it has worked strikes nothing and makes the backlog grow.
const (
	encoreEvery = 250 * time.Millisecond // between two kills
	unarmedLife = time.Second            // readiness before a kill, without a missing strike armed
	armedLife   = 6 * time.Second        // the same, with a missing strike armed
)

// RunEncore repeats faults that have struck nothing under load, and kills processes so that they restart with
// missing failpoints armed. It ends when all required strikes have happened, or after limit. The site's log
// must go to NoteEvent.
func (a *Armory) RunEncore(ctx context.Context, s *site.Site, o record.Options, open func() int, limit time.Duration) {
	a.BeginLatePhase()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var faults sync.WaitGroup
	faults.Go(func() { a.repeatUnmet(newCarrier(ctx, s, open), o) })
	defer faults.Wait()
	for tick := time.Tick(encoreEvery); ; {
		missing := a.MissingPoints()
		if len(missing) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		var able []string
		for _, process := range site.Processes() {
			armed, ready := s.WorkState(process)
			if outlived(ofService(site.ServiceOf(process), missing), armed, ready) {
				able = append(able, process)
			}
		}
		if len(able) == 0 {
			continue
		}
		process := able[rand.IntN(len(able))]
		if done, err := s.KillProcess(process); done && err == nil {
			s.LogEvent(record.Event{At: s.SinceBegin(), Fault: Kill, Target: process, Args: "for what has not struck yet", Open: open(), Hits: 1})
		}
	}
}

// repeatUnmet carries out the unmet faults one after the other, with new random targets, until each has struck.
func (a *Armory) repeatUnmet(c *carrier, o record.Options) {
	r := randomStream(a.seed, encoreStream)
	for {
		unmet := a.unmetKinds()
		if len(unmet) == 0 {
			return
		}
		for _, k := range unmet {
			if !c.waitFor(encoreEvery) {
				return
			}
			d := k.drawFault(r, o)
			a.mu.Lock()
			d.N = a.n + 1
			a.mu.Unlock()
			c.carryFault(&d.Planned, k.carry)
		}
	}
}

// unmetKinds returns the faults that have struck no process at work.
func (a *Armory) unmetKinds() (unmet []*kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range kinds {
		if !a.met[kinds[i].name] {
			unmet = append(unmet, &kinds[i])
		}
	}
	return unmet
}

// outlived reports whether a process has been ready long enough to be killed: armedLife if it is armed with a
// missing strike, otherwise unarmedLife.
func outlived(missing []string, armed string, ready time.Duration) bool {
	if len(missing) == 0 {
		return false
	}
	for fuse := range strings.SplitSeq(armed, ";") {
		if slices.Contains(missing, fuse) {
			return ready > armedLife
		}
	}
	return ready > unarmedLife
}
