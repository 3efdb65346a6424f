package judge

import (
	"slices"
	"strings"
	"time"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

// An identity is the identity of a step: an inbox has one row for it.
type identity struct{ schema, scope, key, step, n string }

// String returns the row's table and key, as in a Change.
func (i identity) String() string {
	return i.schema + ".inbox " + strings.Join([]string{i.scope, i.key, i.step, i.n}, "|")
}

// The states of a step's row after its action, or its compensation, was settled. A compensation that found an
// action under way leaves a state that is not among them.
var (
	settledStates = []string{"done", "refused", "void", "compensated"}
	undoneStates  = []string{"void", "compensated"}
)

func (c *run) judgeMessages() []*Invariant {
	drained := &Invariant{ID: "I7", Says: "every outbox is drained: nothing is held, refused or dead in one"}
	lost := &Invariant{ID: "I9", Says: "every message of an outbox has come to each service that listens to its topic"}
	ghost := &Invariant{ID: "I9", Says: "every inbox row was brought about by a message of an outbox, or by an injected one"}
	repaired := &Invariant{ID: "I9", Says: "of what was written once more after a queue was deleted, nothing had been lost before"}
	states := &Invariant{ID: "I4", Says: "an inbox row changes along its graph"}
	letters := &Invariant{ID: "I12", Says: "the dead letters are what was injected as poison, and nothing else"}
	twice := &Invariant{ID: "I1", Says: "an inbox row is done once, and undone once"}

	for schema, held := range c.rows.held {
		drained.Checked++
		for _, h := range held {
			drained.addOffender(Offender{Key: schema}, "%s: message %s to %s is %s: %s", schema, h.MessageID, h.Topic, h.State, h.Reason)
		}
	}
	c.judgeArrivals(lost, ghost)
	c.judgeRepairs(repaired)
	c.judgeInboxes(states, twice)
	c.judgeLetters(letters)
	amplified := &Invariant{ID: "I10", Says: "the broker has every queue, and nothing left in it, ready or unacked"}
	for _, q := range c.final.Queues {
		amplified.checkThat(q.Ready == 0 && q.Unacked == 0 && !q.Absent, Offender{Key: q.Name}, "%d ready, %d unacked, absent: %t", q.Ready, q.Unacked, q.Absent)
	}
	return []*Invariant{twice, states, drained, lost, ghost, repaired, amplified, letters}
}

func (c *run) inboxRows() map[identity]string {
	states := map[identity]string{}
	for schema, all := range c.rows.inboxes {
		for _, r := range all {
			states[identity{schema, r.Scope, r.Key, r.Step, r.N}] = r.State
		}
	}
	return states
}

// judgeArrivals compares sent messages with inbox rows, step by step. A message of the same saga to another
// step does not count.
func (c *run) judgeArrivals(lost, ghost *Invariant) {
	states := c.inboxRows()
	caused := map[identity]bool{}
	for _, m := range c.messages {
		for _, l := range listening(m.Topic) {
			row := identity{l.schema, m.Scope, m.Key, l.step, m.N}
			caused[row] = true
			settled := settledStates
			if l.undo {
				settled = undoneStates
			}
			lost.checkThat(slices.Contains(settled, states[row]), Offender{Key: m.Scope + "/" + m.Key}, "%s to %s: %s is %q", m.MessageID, m.Topic, row, states[row])
		}
	}
	poisoned := c.poisoned()
	for row, state := range states {
		ghost.checkThat(caused[row] || poisoned[row.String()], Offender{Key: row.scope + "/" + row.key}, "%s is %s, and nobody has sent it", row, state)
	}
}

// waited is how long before a queue's deletion a lost message may have been written. The time of the broker's
// confirmation is unknown; only the time of writing is. In a storm on a slow machine outboxes and queues have
// had backlogs of 90 s. An older message was lost before the deletion.
const waited = 2 * time.Minute

// judgeRepairs checks that the harness has repeated only messages that it may have discarded itself. Otherwise
// a repair would hide a loss by the services.
func (c *run) judgeRepairs(i *Invariant) {
	for _, e := range c.events {
		for _, r := range e.Repeated {
			age := e.At - c.sinceBegin(r.Written)
			i.checkThat(age <= waited, Offender{Key: r.MessageID}, "%s to %s had been written %s before the queue was deleted, and no inbox had it", r.MessageID, e.Target, age.Round(time.Second))
		}
	}
}

// inboxGraph holds the allowed changes of an inbox row's state, as in internal/inbox.
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

// judgeInboxes follows every inbox row through its changes. A row that is deleted and inserted again starts in
// a new state, but its earlier effects still count.
func (c *run) judgeInboxes(states, twice *Invariant) {
	for _, cell := range c.inboxCells() {
		state, done, undone := "", 0, 0
		for _, ch := range cell.changes {
			if ch.op == "DELETE" {
				state = ""
				continue
			}
			if ch.state == state {
				continue
			}
			states.checkThat(slices.Contains(inboxGraph[state], ch.state), Offender{Key: cell.table + " " + cell.key}, "%s → %s", state, ch.state)
			switch state = ch.state; state {
			case "done":
				done++
			case "compensated":
				undone++
			}
		}
		twice.checkThat(done <= 1 && undone <= 1, Offender{Key: cell.table + " " + cell.key}, "done %d times, undone %d times", done, undone)
	}
}

// poisoned returns the inbox rows, by table and key, that belong to dead letters of injected poison.
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
			if poison[l.identityText()] && l.Key != nil {
				rows[identity{schema, *l.Scope, *l.Key, *l.Step, *l.N}.String()] = true
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

// inboxCells returns the cells of all inboxes.
func (c *run) inboxCells() []*cell {
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

// committed keeps the last change of a row in each transaction. A claim inserts the row in its expected final
// state, and states before COMMIT are invisible to other sessions.
func committed(all []change) []change {
	kept := all[:0]
	for i, ch := range all {
		if i+1 == len(all) || all[i+1].tx != ch.tx {
			kept = append(kept, ch)
		}
	}
	return kept
}

// missedBinding is how long after a binding's deletion a message may still be confirmed for other queues alone.
const missedBinding = 2 * time.Second

// discarded reports whether a fault of the harness may have discarded an injected message. Deleting a queue
// discards its messages and those that arrive before it is back. Without a binding, the broker confirms a
// message only if other queues get it. The harness repeats lost messages of outboxes, but not poison.
func (c *run) discarded(p record.Injection) bool {
	others := len(listening(p.Topic)) > 1
	return slices.ContainsFunc(c.events, func(e record.Event) bool {
		if e.Target != p.Topic || p.At >= e.Until+missedBinding {
			return false
		}
		switch e.Fault {
		case "queue-delete":
			return p.At > e.At-waited
		case "binding-delete", "exchange-delete":
			return others && p.At >= e.At
		}
		return false
	})
}

// judgeLetters compares dead letters with the poison by message id, topic, reason and payload. Each listening
// service must have one.
func (c *run) judgeLetters(i *Invariant) {
	want := map[[2]string]record.Injection{} // by schema and message id
	for _, p := range c.injected {
		if p.Kind != record.Poison {
			continue
		}
		for _, l := range listening(p.Topic) {
			want[[2]string{l.schema, p.MessageID}] = p
		}
	}
	found := map[[2]string]int{}
	for schema, rows := range c.rows.parked {
		for _, r := range rows {
			k := [2]string{schema, r.identityText()}
			found[k]++
			if p, poison := want[k]; !poison || !r.isOfInjection(p) {
				i.checkThat(false, Offender{Key: schema + " " + r.identityText()}, "%s %s from %s, payload %s: %s %s", r.State, r.Kind, r.Topic, r.Payload, r.Reason, r.Error)
			}
		}
	}
	for k, p := range want {
		i.checkThat(found[k] >= 1 || p.Unconfirmed || c.discarded(p), Offender{Key: k[0] + " " + k[1]}, "poison (%s) to %s is no dead letter", p.What, p.Topic)
	}
}

// isOfInjection reports whether r is the expected dead letter of p.
func (r *parkedRow) isOfInjection(p record.Injection) bool {
	reason, _, _ := strings.Cut(p.What, ":")
	return r.State == "dead" && r.Topic == p.Topic && r.Reason == reason && r.Payload == p.Payload
}
