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

// An Armory arms processes: by the seed, and, once it is late, with what has not
// struck yet instead. In the end it sees to the faults that have met nobody.
type Armory struct {
	seed   uint64
	seeded func(process string, start int) string
	log    string

	mu    sync.Mutex
	late  bool
	turns int
	met   map[string]bool // faults that have struck somebody at work
	n     int             // the greatest of a fault that was planned
}

// NewArmory returns that of a run whose points write to the file log.
func NewArmory(seed uint64, log string) *Armory {
	return &Armory{seed: seed, seeded: PlanFuses(seed), log: log, met: map[string]bool{}}
}

// NoteEvent takes down what was done to the site.
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

// armMissing returns as many of the missing strikes as one life has room for: one action at
// each point, and one that ends or stops it. Whose turn it is comes first.
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

// ofService are those strikes to whose points processes of a service come.
func ofService(service string, strikes []string) (of []string) {
	for _, fuse := range strikes {
		if name, _, _ := strings.Cut(fuse, "="); slices.ContainsFunc(pointsOf(service), func(p point) bool { return p.name == name }) {
			of = append(of, fuse)
		}
	}
	return of
}

// BeginLatePhase has what is missing armed from now on.
func (a *Armory) BeginLatePhase() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late = true
}

// missingPoints are the required strikes, as point=action, that the log does not have.
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

// MissingPoints returns the required strikes that have not been, as point=action.
func (a *Armory) MissingPoints() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.missingPoints()
}

// The times of an encore. A process that is killed before it has worked strikes nothing,
// and leaves the work to pile up.
const (
	encoreEvery = 250 * time.Millisecond // between two kills
	unarmedLife = time.Second            // of work, of a process that is not armed with what is missing
	armedLife   = 6 * time.Second        // and of one that is
)

// RunEncore repeats faults that have met nobody yet, and kills processes, so that they are
// armed anew with failpoints that have not struck, until nothing that is required is
// missing, or for as long as limit. What strikes at all does so before. The site's log
// goes to Note.
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

// repeatUnmet carries out, one after the other, what has met nobody, on whom it falls this
// time, until all have met somebody.
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

// unmetKinds are the faults that have met nobody.
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

// outlived reports whether a process that could strike what is missing has had the time
// to, armed as it is.
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
