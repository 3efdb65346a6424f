package judge

import (
	"fmt"
	"net/http"

	"github.com/sagamill/sagamill/chaos/internal/record"
)

func (c *run) judgeClients() []*Invariant {
	one := &Invariant{ID: "I1", Says: "one key is one saga, whoever was told so"}
	lost := &Invariant{ID: "I2", Says: "every key that a client was told a saga of has it, and no other has one"}
	bytes := &Invariant{ID: "I6", Says: "every client of a key gets the same bytes, and one with another body 422"}
	wait := &Invariant{ID: "I2", Says: "every client gets its answer in the end"}
	for k, p := range c.keys {
		o := Offender{Key: k.String()}
		if len(p.ids) > 0 {
			o.Saga = p.ids[0]
		}
		one.checkThat(len(p.ids) <= 1, o, "its ids are %v", p.ids)
		judgeBytes(bytes, p, o)
		wait.checkThat(len(p.posts) == 0 || p.isSettled(), o, "%d requests, the last one: %s", len(p.posts), describe(p.posts))
	}
	unsettled := c.unsettled()
	for _, row := range c.rows.orders {
		lost.checkThat(c.byID[row.ID] != nil || unsettled, Offender{Saga: row.ID}, "no client was ever told of the order of %s", row.Tenant)
	}
	for _, row := range c.rows.trips {
		p := c.keys[key{record.Trip, row.Tenant, row.Key}]
		lost.checkThat(p != nil, Offender{Saga: row.ID}, "nobody has placed the trip of %s", row.Tenant)
	}
	for id, p := range c.byID {
		lost.checkThat(c.sagaExists(p.saga, id), Offender{Saga: id, Key: p.key.String()}, "the client was told of it, and it is not there")
	}
	return []*Invariant{one, lost, bytes, wait}
}

// unsettled reports whether some client never got a final answer: a saga may then exist that no client knows.
func (c *run) unsettled() bool {
	for _, p := range c.keys {
		if len(p.ids) == 0 && len(p.posts) > 0 {
			return true
		}
	}
	return false
}

func (c *run) sagaExists(saga, id string) bool {
	if saga == record.Order {
		for _, ch := range c.changes[id] {
			if ch.table == "order_service.orders" {
				return true
			}
		}
		return false
	}
	for _, ch := range c.changes[id] {
		if ch.table == "trip_service.trip" || ch.table == "trip_service.saga" {
			return true
		}
	}
	return false
}

// isSettled reports whether a client got a final answer.
func (p *placed) isSettled() bool {
	for _, op := range p.posts {
		if op.Outcome == record.OK {
			return true
		}
	}
	return false
}

func describe(ops []record.Op) string {
	if len(ops) == 0 {
		return "none"
	}
	op := ops[len(ops)-1]
	return fmt.Sprintf("%s, status %d %s %s", op.Outcome, op.Status, op.Problem, op.Err)
}

// judgeBytes compares the answers to a key's requests. All final answers to the first body are the same, and
// any other body is refused.
func judgeBytes(i *Invariant, p *placed, o Offender) {
	var first *record.Op
	for n := range p.posts {
		if op := &p.posts[n]; op.Outcome == record.OK && (first == nil || op.Return < first.Return) {
			first = op
		}
	}
	if first == nil {
		return
	}
	for _, op := range p.posts {
		switch {
		case op.Outcome == record.OK && op.Body != first.Body:
			i.checkThat(false, o, "two bodies were accepted")
		case op.Outcome == record.OK:
			i.checkThat(op.Reply == first.Reply, o, "%s and %s were answered", first.Reply, op.Reply)
		case op.Status == http.StatusUnprocessableEntity && op.Body == first.Body:
			i.checkThat(false, o, "its own body was refused: %s", op.Problem)
		case op.Body != first.Body && op.Outcome == record.Refused:
			i.checkThat(op.Status != http.StatusCreated && op.Status != http.StatusAccepted, o, "another body was answered %d", op.Status)
		}
	}
}
