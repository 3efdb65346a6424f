package judge

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/idemkey/idemkeytest/lineartest"
)

// judgeLinear checks linearizability. The clients' answers of each key, and the changes of each inbox row, must
// be those of one cell that executes operations one at a time.
func (c *run) judgeLinear() []*Invariant {
	keys := &Invariant{ID: "L", Says: "what the clients saw of each idempotency key is linearizable"}
	rows := &Invariant{ID: "L", Says: "what happened to each inbox row is linearizable, from its messages on"}
	for k, p := range c.keys {
		ops := keyHistory(k, p)
		if len(ops) == 0 {
			continue
		}
		o := p.offender(slices.Concat(p.ids, []string{""})[0])
		err := lineartest.Check(ops)
		keys.checkThat(err == nil || !errors.Is(err, lineartest.ErrNotLinear) && len(ops) > lineartest.MaxOps, o, "%v", err)
	}
	c.judgeCells(rows)
	return []*Invariant{keys, rows}
}

// keyHistory returns the operations on a key, as clients saw them.
func keyHistory(k key, p *placed) (ops []lineartest.Op) {
	for _, op := range p.posts {
		l := lineartest.Op{Client: op.Client, Key: k.saga + " " + k.String(), Body: op.Body, Call: int64(op.Call), Return: int64(op.Return), Kind: lineartest.Absurd}
		switch {
		case op.Outcome == record.Unknown:
			l.Kind, l.Return = lineartest.Unknown, lineartest.Never
		case op.Outcome == record.OK && op.Replay:
			l.Kind, l.Response = lineartest.Replayed, op.Reply
		case op.Outcome == record.OK:
			l.Kind, l.Response = lineartest.Created, op.Reply
		case op.Status == http.StatusUnprocessableEntity:
			l.Kind = lineartest.Mismatch
		case op.Status == http.StatusConflict:
			l.Kind = lineartest.InFlight
		case op.Status == 0, op.Status == http.StatusTooManyRequests, op.Status == http.StatusServiceUnavailable:
			continue // refused before the service read the key
		}
		ops = append(ops, l)
	}
	return ops
}

// A deed is an operation on an inbox row: a transaction committed a message for it, which may be delivered at
// any later time, or its state changed.
type deed struct {
	message bool
	undo    bool
	state   string
}

// A cellState is the state of an inbox row.
type cellState struct {
	sent, undoSent bool
	state          string
}

// inboxCell is the model of one row: no change comes before a message, and the row is done at most once and
// undone at most once.
var inboxCell = porcupine.Model{
	Init: func() any { return cellState{} },
	Step: func(s, in, _ any) (bool, any) {
		now, d := s.(cellState), in.(deed)
		if d.message {
			now.sent, now.undoSent = now.sent || !d.undo, now.undoSent || d.undo
			return true, now
		}
		legal := slices.Contains(inboxGraph[now.state], d.state)
		switch d.state {
		case "done", "refused", "retrying", "dead", "open":
			legal = legal && (now.sent || now.undoSent)
		case "void", "compensated", "undoing", "undo-dead":
			legal = legal && now.undoSent
		}
		now.state = d.state
		return legal, now
	},
}

// cellsTimeout bounds the search for one row, which has some ten operations.
const cellsTimeout = 10 * time.Second

func (c *run) judgeCells(i *Invariant) {
	sent := map[string][]porcupine.Operation{} // by the row
	for _, m := range c.messages {
		for _, l := range listening(m.Topic) {
			row := identity{l.schema, m.Scope, m.Key, l.step, m.N}.String()
			sent[row] = append(sent[row], porcupine.Operation{Input: deed{message: true, undo: l.undo}, Call: int64(c.sinceBegin(m.At)), Return: math.MaxInt64})
		}
	}
	poisoned := c.poisoned()
	for _, cell := range c.inboxCells() {
		row := cell.table + " " + cell.key
		if poisoned[row] {
			continue // caused by a message that no service has sent
		}
		ops := slices.Clone(sent[row])
		if len(ops) > lineartest.MaxOps {
			ops = ops[:lineartest.MaxOps] // one early message is enough
		}
		state := ""
		for _, ch := range cell.changes {
			switch {
			case ch.op == "DELETE":
				state = "" // any state after a deletion is a change
			case ch.state != state:
				ops = append(ops, porcupine.Operation{Input: deed{state: ch.state}, Call: ch.at, Return: ch.at})
				state = ch.state
			}
		}
		result := porcupine.CheckOperationsTimeout(inboxCell, ops, cellsTimeout)
		i.checkThat(result == porcupine.Ok, Offender{Key: row}, "%s: %d operations", result, len(ops))
	}
}
