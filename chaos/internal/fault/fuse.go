package fault

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// The patterns are the arming of twenty starts of a service in a row. A start gets no fuse, an error and a
// delay (mild), or these and a kill or a stop.
var (
	pattern        = splitStarts(11, 4, 3, 2)
	specialPattern = splitStarts(9, 4, 4, 3)
)

// One start of perhapsIn is armed at each point that processes hardly ever reach. One start of seldomIn is
// armed at one of the points that they reach now and then.
const (
	perhapsIn = 6
	seldomIn  = 3
)

func splitStarts(unarmed, mild, kill, stop int) (starts []string) {
	for _, part := range []struct {
		action string
		n      int
	}{{"", unarmed}, {"mild", mild}, {"kill", kill}, {"stop", stop}} {
		starts = append(starts, slices.Repeat([]string{part.action}, part.n)...)
	}
	return starts
}

// PlanFuses returns the failpoints of each start: a pure function of the seed, the process and the start. About
// half of a process's starts are armed with an error and a delay. More than half of those also get a kill or a
// stop at one point of each component; the first one reached strikes. The two processes of a service take turns
// at its points, so that each point is armed often enough. Some starts are also armed at points that a process
// seldom reaches.
func PlanFuses(seed uint64) func(process string, start int) string {
	return func(process string, start int) string {
		service, turn := site.ServiceOf(process), turnOfStart(process, start)
		r := randomStream(seed, fuseStream+digestName(fmt.Sprint(process, start)))
		fuses := drawFuses(seed, service, turn, r)
		var rare []point
		for _, p := range pointsOf(service) {
			switch {
			case p.when == perhaps && r.IntN(perhapsIn) == 0:
				fuses = append(fuses, p.armedText(r, pickOne(r, failpoint.Actions())))
			case p.when == seldom:
				rare = append(rare, p)
			}
		}
		if len(rare) > 0 && turn%seldomIn == 0 {
			n, actions := turn/seldomIn, failpoint.Actions()
			fuses = append(fuses, rare[n%len(rare)].armedText(r, actions[n/len(rare)%len(actions)]))
		}
		return strings.Join(fuses, ";")
	}
}

func digestName(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// drawFuses returns the fuses of the turn-th start of a service, at points that its processes reach steadily.
func drawFuses(seed uint64, service string, turn int, r *rand.Rand) (fuses []string) {
	starts := slices.Clone(pattern)
	if isSpecial(service) {
		starts = slices.Clone(specialPattern)
	}
	order := randomStream(seed, fuseStream+digestName(service))
	order.Shuffle(len(starts), func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
	round, at := turn/len(starts), turn%len(starts)
	action := starts[at]
	if action == "" {
		return nil
	}
	// The number of an action's earlier turns selects its next point.
	nth := func(is func(string) bool) int {
		return round*countMatching(starts, is) + countMatching(starts[:at], is)
	}
	armed := nth(func(a string) bool { return a != "" })
	for _, mild := range []string{"error", "delay"} {
		fuses = append(fuses, nextPoint(seed, service, mild, slices.Concat(pointGroups(service)...), armed).armedText(r, mild))
	}
	if action == "mild" {
		return fuses
	}
	n := nth(func(a string) bool { return a == action })
	for _, group := range pointGroups(service) {
		fuses = append(fuses, nextPoint(seed, service, action, group, n).armedText(r, action))
	}
	return fuses
}

// pointGroups returns the components in which a service is struck, each by one lethal fuse at a time. A service
// with special components is struck in those.
func pointGroups(service string) [][]string {
	switch service {
	case "order", "gateway":
		return [][]string{{"idemkey", "idempg"}}
	case "payment":
		return [][]string{{"effect"}}
	case "trip":
		return [][]string{{"outbox", "consumer"}, {"saga"}}
	default:
		return [][]string{{"outbox"}, {"consumer"}}
	}
}

func countMatching(all []string, is func(string) bool) (n int) {
	for _, s := range all {
		if is(s) {
			n++
		}
	}
	return n
}

// nextPoint returns the n-th point at which an action strikes, among the points of some components.
func nextPoint(seed uint64, service, action string, among []string, n int) point {
	var order []point
	for _, p := range pointsOf(service, among...) {
		if p.when == steadily {
			order = append(order, p)
		}
	}
	r := randomStream(seed, fuseStream+digestName(fmt.Sprint(service, action, among)))
	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order[n%len(order)]
}

// armedText returns a fuse as text. Low hits are more likely, because a process does not live long.
func (p point) armedText(r *rand.Rand, action string) string {
	fuse := p.name + "=" + action
	if action == "delay" {
		fuse += fmt.Sprintf("(%s)", randomBetween(r, 50*time.Millisecond, time.Second))
	}
	if p.hits == 1 {
		return fuse
	}
	return fmt.Sprintf("%s:%d", fuse, 1+r.IntN(1+r.IntN(p.hits)))
}
