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
// struck yet besides.
type Armory struct {
	seeded func(process string, start int) string
	log    string

	mu   sync.Mutex
	late bool
	next int
}

// NewArmory returns that of a run whose points write to the file log.
func NewArmory(seed uint64, log string) *Armory { return &Armory{seeded: Fuses(seed), log: log} }

// Fuses returns SAGAMILL_FAILPOINTS of a process's start.
func (a *Armory) Fuses(process string, start int) string {
	fuses := a.seeded(process, start)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.late {
		return fuses
	}
	missing := a.missing()
	service := site.ServiceOf(process)
	for range missing {
		a.next++
		if fuse := missing[a.next%len(missing)]; comesTo(service, pointOf(fuse)) {
			return strings.Trim(fuses+";"+fuse, ";")
		}
	}
	return fuses
}

// Late has what is missing armed from now on.
func (a *Armory) Late() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.late = true
}

// comesTo reports whether processes of a service come to a point.
func comesTo(service, name string) bool {
	return slices.ContainsFunc(pointsOf(service), func(p point) bool { return p.name == name })
}

func pointOf(fuse string) string {
	point, _, _ := strings.Cut(fuse, "=")
	return point
}

// missing are the required strikes, as point=action, that the log does not have.
func (a *Armory) missing() (missing []string) {
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

// Missing returns the required strikes that have not been, as point=action.
func (a *Armory) Missing() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.missing()
}

// encoreEvery is the pause between the kills of an encore.
const encoreEvery = 250 * time.Millisecond

// Encore kills processes, so that they are armed anew, until nothing that is required
// is missing, or for as long as limit. What strikes at all does so before.
func (a *Armory) Encore(ctx context.Context, s *site.Site, open func() int, limit time.Duration) {
	a.Late()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for tick := time.Tick(encoreEvery); ; {
		missing := a.Missing()
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
			if comesTo(site.ServiceOf(process), pointOf(missing[rand.IntN(len(missing))])) {
				able = append(able, process)
			}
		}
		if len(able) == 0 {
			continue
		}
		process := able[rand.IntN(len(able))]
		if done, err := s.Kill(process); done && err == nil {
			s.Log(record.Event{At: s.Now(), Fault: Kill, Target: process, Args: "for what has not struck yet", Open: open()})
		}
	}
}
