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

// struck are the points at which a storm strikes: those that its services come to
// again and again. All others are left to their directed tests, which strike every
// point there is: TestEveryFailpoint of idemkey/idemkeytest/matrixtest (Redis and both
// stores), TestEveryFailpointOfTheRelay of outbox (the table log, rotation, adoption,
// held messages), TestFaults… of consumer, saga and cmd/sagamill (what operators do).
var struck = []string{
	"idemkey/after-begin", "idemkey/before-keep", "idemkey/after-keep",
	"idempg/after-claim", "idempg/before-commit", "idempg/after-commit",
	"outbox/before-take-over", "outbox/after-take-over", "outbox/after-read", "outbox/before-publish", "outbox/after-confirm",
	"outbox/after-publish", "outbox/after-checkpoint", "outbox/before-commit", "outbox/before-renew", "outbox/after-renew",
	"consumer/after-count", "consumer/before-handler", "consumer/before-commit", "consumer/after-commit", "consumer/before-ack", "consumer/after-ack",
	"effect/after-claim", "effect/before-call", "effect/after-call", "effect/before-record", "effect/after-record",
	"saga/after-start", "saga/after-timer-claim", "saga/before-timer-commit", "saga/after-timer-commit",
}

// components say which of the failpoints' components a service is made of.
func components(service string) []string {
	switch service {
	case "gateway":
		return []string{"idemkey", "idempg"}
	case "order":
		return []string{"idemkey", "idempg", "outbox", "consumer"}
	case "trip":
		return []string{"idemkey", "idempg", "outbox", "consumer", "saga"}
	case "payment":
		return []string{"effect", "outbox", "consumer"}
	default:
		return []string{"outbox", "consumer"}
	}
}

// special are the components that only a service or two have. Those services die and
// hang there, and all others elsewhere; errors and delays strike all points, these
// four times as often.
var special = []string{"idemkey", "idempg", "effect"}

const specialWeight = 4

func isSpecial(point string) bool {
	component, _, _ := strings.Cut(point, "/")
	return slices.Contains(special, component)
}

// points are the names of those that a service comes to.
func points(service string) (names []string) {
	for _, p := range failpoint.Points(components(service)...) {
		if slices.Contains(struck, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// rare are points that a process comes to once in its life, if at all: their fuses
// strike at the first hit.
var rare = []string{"outbox/before-take-over", "outbox/after-take-over", "outbox/before-commit", "saga/after-timer-claim", "saga/before-timer-commit", "saga/after-timer-commit"}

// always are rare points at which every start is armed: a relay comes to the first
// only if a message was refused, the trip service to the others only if a timer is
// due.
var always = []string{"outbox/before-commit", "saga/after-timer-claim", "saga/before-timer-commit", "saga/after-timer-commit"}

// maxHits is the latest hit at which another fuse strikes.
const maxHits = 16

// The patterns are what becomes of so many starts of a service in a row: not armed,
// armed with an error and a delay, or with a kill or a stop besides. Services with
// special components are armed more often.
var (
	pattern        = parts(8, 5, 5, 2)
	specialPattern = parts(3, 4, 8, 5)
)

func parts(unarmed, mild, kill, stop int) (starts []string) {
	for action, n := range map[string]int{"": unarmed, "error": mild, "kill": kill, "stop": stop} {
		starts = append(starts, slices.Repeat([]string{action}, n)...)
	}
	slices.Sort(starts)
	return starts
}

// Fuses returns the failpoints of each start: a pure function of the seed, the
// process and the start. More than six of ten starts are armed, with an error, a
// delay, and often a kill or a stop besides. The two processes of a service take
// turns at its points, so that none is left out for long.
func Fuses(seed uint64) func(process string, start int) string {
	return func(process string, start int) string {
		service := site.ServiceOf(process)
		turn := 2 * start
		if strings.HasSuffix(process, "-2") {
			turn++
		}
		r := stream(seed, fuseStream+digest(fmt.Sprint(process, start)))
		fuses := draw(seed, service, turn, r)
		if pairs := alwaysArmed(seed, service); len(pairs) > 0 {
			fuses = append(fuses, pairs[turn%len(pairs)])
		}
		return strings.Join(fuses, ";")
	}
}

func digest(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// draw returns the fuses of the turn-th start of a service.
func draw(seed uint64, service string, turn int, r *rand.Rand) (fuses []string) {
	starts := slices.Clone(pattern)
	if slices.ContainsFunc(points(service), isSpecial) {
		starts = slices.Clone(specialPattern)
	}
	order := stream(seed, fuseStream+digest(service))
	order.Shuffle(len(starts), func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
	round, at := turn/len(starts), turn%len(starts)
	if starts[at] == "" {
		return nil
	}
	// How often an action has had its turn says which point is next.
	next := func(action string, has func(string) bool) {
		n := round*count(starts, has) + count(starts[:at], has)
		all := turns(seed, service, action)
		fuses = append(fuses, arm(r, all[n%len(all)], action))
	}
	armed := func(action string) bool { return action != "" }
	next("error", armed)
	next("delay", armed)
	if action := starts[at]; action != "error" {
		next(action, func(a string) bool { return a == action })
	}
	return fuses
}

func count(all []string, is func(string) bool) (n int) {
	for _, s := range all {
		if is(s) {
			n++
		}
	}
	return n
}

// turns are the points of a service in the order in which an action takes them.
func turns(seed uint64, service, action string) (order []string) {
	lethal := action == "kill" || action == "stop"
	all := points(service)
	spare := service == "trip" || !slices.ContainsFunc(all, isSpecial)
	for _, point := range all {
		n := 1
		switch {
		case slices.Contains(always, point):
			n = 0
		case lethal && isSpecial(point) == spare:
			n = 0
		case isSpecial(point) && !spare:
			n = specialWeight
		}
		order = append(order, slices.Repeat([]string{point}, n)...)
	}
	r := stream(seed, fuseStream+digest(service+action))
	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// alwaysArmed are the fuses of which each start of a service has one.
func alwaysArmed(seed uint64, service string) (fuses []string) {
	for _, point := range points(service) {
		for _, action := range failpoint.Actions() {
			if slices.Contains(always, point) {
				fuses = append(fuses, point+"="+action)
			}
		}
	}
	r := stream(seed, fuseStream+digest(service))
	r.Shuffle(len(fuses), func(i, j int) { fuses[i], fuses[j] = fuses[j], fuses[i] })
	return fuses
}

// arm returns a fuse. Low hits are more likely: a process does not live long.
func arm(r *rand.Rand, point, action string) string {
	fuse := point + "=" + action
	if action == "delay" {
		fuse += fmt.Sprintf("(%s)", between(r, 50*time.Millisecond, time.Second))
	}
	if slices.Contains(rare, point) {
		return fuse
	}
	return fmt.Sprintf("%s:%d", fuse, 1+r.IntN(1+r.IntN(maxHits)))
}

// unasked are points whose strikes are not required: a relay comes there only while a
// binding is deleted and its messages are returned.
var unasked = []string{"outbox/before-commit"}

// Required returns what must have struck in a run, or it proves nothing: every fault,
// and every action of every point that the services come to, as point=action.
func Required() (names []string) {
	names = append(names, Kill)
	for _, k := range kinds {
		names = append(names, k.name)
	}
	var all []string
	for _, service := range site.Services() {
		all = append(all, points(service)...)
	}
	slices.Sort(all)
	for _, point := range slices.Compact(all) {
		for _, action := range failpoint.Actions() {
			if !slices.Contains(unasked, point) {
				names = append(names, point+"="+action)
			}
		}
	}
	return names
}
