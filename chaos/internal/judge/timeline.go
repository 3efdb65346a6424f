package judge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// A Timeline is all evidence of one offender, in order of time.
type Timeline struct {
	Saga   string  `json:"saga,omitempty"`
	Key    string  `json:"key,omitempty"`
	Events []Entry `json:"events"`
}

// An Entry is a moment of a timeline.
type Entry struct {
	At   record.At `json:"at"`
	Who  string    `json:"who"` // source: client, outbox, injector, a table, or fault
	What string    `json:"what"`
}

// The most offenders that get a timeline, and the most entries of one.
const (
	maxTimelines = 60
	maxEntries   = 400
)

// timelines returns the timelines of the offenders with a saga or a key.
func (c *run) timelines(all []*Invariant) ([]Timeline, error) {
	var lines []Timeline
	seen := map[[2]string]bool{}
	for _, i := range all {
		for _, o := range i.Offenders {
			id := [2]string{o.Saga, o.Key}
			if seen[id] || len(lines) == maxTimelines || o.Saga == "" && o.Key == "" {
				continue
			}
			seen[id] = true
			lines = append(lines, c.timeline(o))
		}
	}
	return lines, nil
}

// timeline gathers the evidence of o. It searches the whole run, so call it for a few offenders.
func (c *run) timeline(o Offender) Timeline {
	l := Timeline{Saga: o.Saga, Key: o.Key}
	add := func(at record.At, who, format string, args ...any) {
		l.Events = append(l.Events, Entry{at, who, fmt.Sprintf(format, args...)})
	}
	p := c.byID[o.Saga]
	for k, known := range c.keys {
		if p == nil && o.Key == k.String() {
			p = known
		}
	}
	if p != nil {
		for _, op := range slices.Concat(p.posts, p.cancel) {
			add(op.Call, "client", "%d %s %s → %s %d %s %s after %s", op.Client, op.Method, op.Kind, op.Outcome, op.Status, op.Problem, op.Err, (op.Return - op.Call).Round(time.Millisecond))
		}
	}
	for _, ch := range c.changes[o.Saga] {
		add(record.At(ch.at), ch.table, "%s %s → %s %s (tx %d)", ch.op, ch.key, ch.state, ch.what, ch.tx)
	}
	of := func(scope, key string) bool {
		return p != nil && scope == p.tenant && key == p.key.key || o.Key != "" && strings.Contains(o.Key, scope+"|"+key+"|") || o.Key == scope+"/"+key
	}
	for _, ch := range c.strays {
		if o.Key != "" && strings.Contains(o.Key, ch.key) || p != nil && strings.HasPrefix(ch.key, p.tenant+"|"+p.key.key+"|") {
			add(record.At(ch.at), ch.table, "%s %s → %s %s (tx %d)", ch.op, ch.key, ch.state, ch.what, ch.tx)
		}
	}
	for _, m := range c.messages {
		if of(m.Scope, m.Key) {
			add(c.sinceBegin(m.At), m.Schema+".outbox", "%s to %s, step %s#%s (tx %d)", m.MessageID, m.Topic, m.Step, m.N, m.Tx)
		}
	}
	for _, i := range c.injected {
		if of(i.Scope, i.Key) || o.Key != "" && strings.Contains(o.Key, i.MessageID) {
			add(i.At, "injector", "%s %s to %s %s", i.Kind, i.MessageID, i.Topic, i.What)
		}
	}
	slices.SortStableFunc(l.Events, func(a, b Entry) int { return cmp.Compare(a.At, b.At) })
	if len(l.Events) > 0 {
		c.faultsBetween(l.Events[0].At, l.Events[len(l.Events)-1].At, add)
	}
	slices.SortStableFunc(l.Events, func(a, b Entry) int { return cmp.Compare(a.At, b.At) })
	if len(l.Events) > maxEntries {
		l.Events = l.Events[:maxEntries]
	}
	return l
}

// faultsBetween adds the faults between two moments.
func (c *run) faultsBetween(from, to record.At, add func(record.At, string, string, ...any)) {
	for _, e := range c.events {
		if e.Fault == record.Start || max(e.At, e.Until) < from || e.At > to {
			continue
		}
		lasts := ""
		if e.Until > e.At {
			lasts = " for " + (e.Until - e.At).Round(time.Millisecond).String()
		}
		add(e.At, "fault", "%s %s %s%s", e.Fault, e.Target, e.Args, lasts)
	}
}
