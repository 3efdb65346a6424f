package fault

import (
	"slices"
	"strings"

	"github.com/sagamill/sagamill/chaos/internal/site"
	"github.com/sagamill/sagamill/internal/failpoint"
)

// A point is a failpoint that processes of the examples reach.
type point struct {
	name string
	hits int  // the latest hit at which a fuse strikes
	when when // how often a process comes there
}

type when int

// How often a process reaches a point.
const (
	steadily when = iota // during normal work; starts take turns at being armed there
	seldom               // now and then; some starts are armed there, for the first hit
	perhaps              // hardly ever; some starts are armed there, and a run needs no strike there
)

// points are all failpoints that the examples are known to reach. The component is the part before the slash.
var points = []point{
	{"idemkey/after-begin", 60, steadily},
	{"idemkey/before-keep", 60, steadily},
	{"idemkey/after-keep", 60, steadily},
	{"idemkey/before-release", 1, perhaps}, // where the handler has failed
	{"idemkey/after-release", 1, perhaps},
	{"idempg/after-claim", 60, steadily},
	{"idempg/before-commit", 60, steadily},
	{"idempg/after-commit", 60, steadily},

	{"outbox/before-take-over", 1, steadily},
	{"outbox/after-take-over", 1, steadily},
	{"outbox/after-read", 4, steadily},
	{"outbox/before-publish", 4, steadily},
	{"outbox/after-confirm", 4, steadily},
	{"outbox/after-publish", 4, steadily},
	{"outbox/after-checkpoint", 4, steadily},
	{"outbox/before-renew", 1, steadily},
	{"outbox/after-renew", 1, steadily},
	{"outbox/before-commit", 1, perhaps},  // where a message was refused: its exchange or bindings were deleted
	{"outbox/before-release", 1, perhaps}, // where the active relay stops
	{"outbox/after-read-held", 1, perhaps},
	{"outbox/after-promote", 1, perhaps},
	{"outbox/before-move", 1, perhaps}, // where a message is delayed, or was redriven
	{"outbox/after-move", 1, perhaps},

	{"consumer/after-count", 2, steadily}, // where a message is redelivered
	{"consumer/before-handler", 40, steadily},
	{"consumer/before-commit", 40, steadily},
	{"consumer/after-commit", 40, steadily},
	{"consumer/before-ack", 40, steadily},
	{"consumer/after-ack", 40, steadily},
	{"consumer/after-name", 1, perhaps}, // where a message is poison, or has failed
	{"consumer/after-dead-letter", 1, perhaps},
	{"consumer/after-take", 1, perhaps},
	{"consumer/after-parked", 1, perhaps},

	{"effect/after-claim", 60, steadily},
	{"effect/before-call", 60, steadily},
	{"effect/after-call", 60, steadily},
	{"effect/before-record", 60, steadily},
	{"effect/after-record", 60, steadily},

	{"saga/after-instance", 8, steadily},
	{"saga/after-start", 8, steadily},
	{"saga/before-decision-commit", 1, perhaps}, // where a trip is cancelled
	{"saga/after-decision-commit", 1, perhaps},
	{"saga/after-timer-claim", 1, seldom}, // where a deadline is over
	{"saga/before-timer-commit", 1, seldom},
	{"saga/after-timer-commit", 1, seldom},
}

// unreached maps each other point to the reason why no process of the examples reaches it. Directed tests in
// the point's package strike it with every action, over all stores and brokers.
var unreached = map[string]string{
	"idemkey/after-bury":         "no response is streamed",
	"idempg/after-rollback":      "the load asks for nothing that the handlers reject",
	"idemredis/":                 "keys are kept in PostgreSQL",
	"idemhybrid/":                "keys are kept in PostgreSQL",
	"outbox/before-adopt":        "no database is restored from another cluster",
	"outbox/before-turn-cursors": "no relay leads for so many checkpoints",
	"outbox/after-turn-cursors":  "no relay leads for so many checkpoints",
	"outbox/before-empty":        "everything that was published is kept",
	"outbox/after-empty":         "everything that was published is kept",
	"outbox/after-turn-leaves":   "everything that was published is kept",
	"effect/before-verify":       "the gateway honours keys, and is not asked",
	"effect/after-verify":        "the gateway honours keys, and is not asked",
	"redrive/":                   "an operator's command comes there, and no service",
}

// components returns the components of a service.
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

func (p *point) component() string {
	component, _, _ := strings.Cut(p.name, "/")
	return component
}

// pointsOf returns the points that a service reaches in the named components, or in all if none is named.
func pointsOf(service string, among ...string) (of []point) {
	for _, p := range points {
		c := p.component()
		if slices.Contains(components(service), c) && (len(among) == 0 || slices.Contains(among, c)) {
			of = append(of, p)
		}
	}
	return of
}

// Required returns the strikes without which a run is void: every fault, and every action of every point that
// processes are sure to reach, as point=action.
func Required() (names []string) {
	names = append(names, Kill)
	for _, k := range kinds {
		names = append(names, k.name)
	}
	for _, p := range points {
		for _, action := range failpoint.Actions() {
			if p.when != perhaps {
				names = append(names, p.name+"="+action)
			}
		}
	}
	return names
}

// isSpecial reports whether a service has a component that at most two services have.
func isSpecial(service string) bool { return len(pointsOf(service, special...)) > 0 }

// special are those components. Services with them are armed more often.
var special = []string{"idemkey", "idempg", "effect"}

// turnOfStart returns how many starts of the service came before this one, if its two processes take turns.
func turnOfStart(process string, start int) int {
	return 2*(start-1) + slices.Index([]string{site.ServiceOf(process) + "-1", site.ServiceOf(process) + "-2"}, process)
}
