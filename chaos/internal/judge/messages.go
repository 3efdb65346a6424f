package judge

import (
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// An identity is that of a step: what an inbox has one row for.
type identity struct{ schema, scope, key, step, n string }

func (i identity) String() string {
	return i.schema + " " + i.scope + "/" + i.key + ":" + i.step + "#" + i.n
}

// settled are the states of an inbox row whose step is over.
var settledStates = []string{"done", "refused", "void", "compensated"}

// ownSteps says under which step's name a service takes the messages of a topic
// that carries another step: a consumer has its own. "" leaves it as it is.
func (c *run) judgeMessages() []*Invariant {
	drained := &Invariant{ID: "I7", Says: "every outbox is drained: nothing is held, refused or dead in one"}
	lost := &Invariant{ID: "I9", Says: "every message of an outbox has come to each service that listens to its topic"}
	ghost := &Invariant{ID: "I9", Says: "every inbox row was brought about by a message of an outbox, or by an injected one"}
	states := &Invariant{ID: "I4", Says: "an inbox row changes along its graph"}
	letters := &Invariant{ID: "I12", Says: "the dead letters are what was injected as poison, and nothing else"}
	twice := &Invariant{ID: "I1", Says: "an inbox row is done once, and undone once"}

	for schema, held := range c.rows.held {
		drained.Checked++
		for _, h := range held {
			drained.bad(Offender{Key: schema}, "%s: message %s to %s is %s: %s", schema, h.MessageID, h.Topic, h.State, h.Reason)
		}
	}
	rows := c.inboxRows()
	c.judgeArrivals(lost, ghost, rows)
	c.judgeInboxes(states, twice)
	c.judgeLetters(letters)
	amplified := &Invariant{ID: "I10", Says: "the broker has nothing left, ready or unacked"}
	for _, q := range c.final.Queues {
		amplified.check(q.Ready == 0 && q.Unacked == 0, Offender{Key: q.Name}, "%d ready, %d unacked", q.Ready, q.Unacked)
	}
	return []*Invariant{twice, states, drained, lost, ghost, amplified, letters}
}

// about is a saga's message as far as any consumer keeps it: a service has a step
// name of its own for what it hears.
type about struct{ schema, scope, key, n string }

func (c *run) inboxRows() map[about][]inboxRow {
	rows := map[about][]inboxRow{}
	for schema, all := range c.rows.inboxes {
		for _, r := range all {
			a := about{schema, r.Scope, r.Key, r.N}
			rows[a] = append(rows[a], r)
		}
	}
	return rows
}

// judgeArrivals compares what outboxes have sent with what inboxes have had.
func (c *run) judgeArrivals(lost, ghost *Invariant, rows map[about][]inboxRow) {
	listening := map[string][]string{} // by topic
	for _, s := range consumers {
		for _, topic := range s.topics {
			listening[topic] = append(listening[topic], s.schema)
		}
	}
	caused := map[about]bool{}
	for _, m := range c.messages {
		for _, schema := range listening[m.Topic] {
			a := about{schema, m.Scope, m.Key, m.N}
			caused[a] = true
			settled := slices.ContainsFunc(rows[a], func(r inboxRow) bool { return slices.Contains(settledStates, r.State) })
			lost.check(settled, Offender{Key: m.Scope + "/" + m.Key}, "%s to %s, %s:%s#%s: %s has %v", m.MessageID, m.Topic, m.Key, m.Step, m.N, schema, statesOf(rows[a]))
		}
	}
	poisoned := c.poisoned()
	for a, all := range rows {
		r := all[0]
		ghost.check(caused[a] || poisoned[a.schema+".inbox "+strings.Join([]string{r.Scope, r.Key, r.Step, r.N}, "|")], Offender{Key: a.scope + "/" + a.key}, "%s has %v, and nobody has sent it", a.schema, statesOf(rows[a]))
	}
}

func statesOf(rows []inboxRow) (all []string) {
	for _, r := range rows {
		all = append(all, r.Step+" "+r.State)
	}
	return all
}

// inboxGraph are the changes of an inbox row's state: those of internal/inbox.
var inboxGraph = map[string][]string{
	"":            {"open", "retrying", "dead", "done", "refused", "void"},
	"open":        {"retrying", "dead", "done", "refused", "void"},
	"retrying":    {"dead", "done", "refused", "void"},
	"dead":        {"retrying", "done", "void"},
	"done":        {"undoing", "undo-dead", "compensated"},
	"undoing":     {"undo-dead", "compensated"},
	"undo-dead":   {"undoing", "compensated"},
	"refused":     {"void"},
	"void":        {},
	"compensated": {},
}

// judgeInboxes follows every inbox row through its changes.
func (c *run) judgeInboxes(states, twice *Invariant) {
	for _, cell := range c.cells() {
		state, done, undone := "", 0, 0
		for _, ch := range cell.changes {
			if ch.state == state || ch.op == "DELETE" {
				continue
			}
			states.check(slices.Contains(inboxGraph[state], ch.state), Offender{Key: cell.table + " " + cell.key}, "%s → %s", state, ch.state)
			switch state = ch.state; state {
			case "done":
				done++
			case "compensated":
				undone++
			}
		}
		twice.check(done <= 1 && undone <= 1, Offender{Key: cell.table + " " + cell.key}, "done %d times, undone %d times", done, undone)
	}
}

// poisoned are the inbox rows, by table and key, that dead letters of injected poison have.
func (c *run) poisoned() map[string]bool {
	poison := map[string]bool{}
	for _, i := range c.injected {
		if i.Kind == record.Poison {
			poison[i.MessageID] = true
		}
	}
	rows := map[string]bool{}
	for schema, letters := range c.rows.parked {
		for _, l := range letters {
			if poison[l.id()] && l.Key != nil {
				rows[schema+".inbox "+strings.Join([]string{*l.Scope, *l.Key, *l.Step, *l.N}, "|")] = true
			}
		}
	}
	return rows
}

// A cell is an inbox row with its changes, in their order.
type cell struct {
	table, key string
	changes    []change
}

// cells are those of all inboxes.
func (c *run) cells() []*cell {
	var all []*cell
	byKey := map[[2]string]*cell{}
	add := func(changes []change) {
		for _, ch := range changes {
			if len(ch.table) < 6 || ch.table[len(ch.table)-6:] != ".inbox" {
				continue
			}
			k := [2]string{ch.table, ch.key}
			if byKey[k] == nil {
				byKey[k] = &cell{table: ch.table, key: ch.key}
				all = append(all, byKey[k])
			}
			byKey[k].changes = append(byKey[k].changes, ch)
		}
	}
	for _, changes := range c.changes {
		add(changes)
	}
	add(c.strays)
	for _, one := range all {
		slices.SortFunc(one.changes, func(a, b change) int { return int(a.seq - b.seq) })
		one.changes = committed(one.changes)
	}
	return all
}

// committed leaves of each transaction the last change of a row: a claim inserts the row
// as it hopes to leave it, and nobody sees what it was in between.
func committed(all []change) []change {
	kept := all[:0]
	for i, ch := range all {
		if i+1 == len(all) || all[i+1].tx != ch.tx {
			kept = append(kept, ch)
		}
	}
	return kept
}

// The faults that discard messages, as an operator does who deletes a queue. What
// outboxes had sent is written once more by the same hand, poison is not.
var discarding = []string{"queue-delete", "binding-delete", "exchange-delete"}

// A message may have waited in a queue for so long when that was deleted, or be
// confirmed for its other queues so long after a binding was.
const (
	waitedInQueue = time.Minute
	missedBinding = 2 * time.Second
)

// discarded reports whether the harness itself may have discarded an injected message.
func (c *run) discarded(p record.Injection) bool {
	return slices.ContainsFunc(c.events, func(e record.Event) bool {
		return slices.Contains(discarding, e.Fault) && e.Target == p.Topic && e.At-waitedInQueue < p.At && p.At < e.Until+missedBinding
	})
}

// judgeLetters compares dead letters with the poison, by message id and topic: one
// of each service that listens.
func (c *run) judgeLetters(i *Invariant) {
	want := map[[2]string]record.Injection{} // by schema and message id
	for _, p := range c.injected {
		if p.Kind != record.Poison {
			continue
		}
		for _, s := range consumers {
			if slices.Contains(s.topics, p.Topic) {
				want[[2]string{s.schema, p.MessageID}] = p
			}
		}
	}
	found := map[[2]string]int{}
	for schema, rows := range c.rows.parked {
		for _, r := range rows {
			k := [2]string{schema, r.id()}
			found[k]++
			if _, poison := want[k]; !poison || r.State != "dead" {
				i.check(false, Offender{Key: schema + " " + r.id()}, "%s %s from %s: %s %s", r.State, r.Kind, r.Topic, r.Reason, r.Error)
			}
		}
	}
	for k, p := range want {
		i.check(found[k] >= 1 || p.Unconfirmed || c.discarded(p), Offender{Key: k[0] + " " + k[1]}, "poison (%s) to %s is no dead letter", p.What, p.Topic)
	}
}
