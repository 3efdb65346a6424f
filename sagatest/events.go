package sagatest

import (
	"errors"
	"fmt"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// how a message is handled.
type how int

const (
	plainly       how = iota
	publishedTwin     // and another copy of it stays
	diesBefore        // the process dies before the handler
	diesInside        // … after the handler, before COMMIT
	diesAfter         // … after COMMIT, before the ack
	diesRelaying      // … the relay's, after it has published what was sent, before it has marked it
	handlerFails
	handlerDies // its message is a dead letter in the end
)

var howTold = map[how]string{
	publishedTwin: "; it was published twice",
	diesBefore:    "; the process died before the handler",
	diesInside:    "; the process died before COMMIT",
	diesAfter:     "; the process died after COMMIT, before the ack",
	diesRelaying:  "; the relay died after it had published, before it had marked that",
	handlerFails:  "; the handler was made to fail",
	handlerDies:   "; the handler was made to fail until its attempts were used up",
}

// faultKind is what ExploreOptions count.
type faultKind int

const (
	noFault faultKind = iota
	duplication
	crash
	failing
	early
	cancelling
	faultKinds // how many there are
)

var faultOf = map[how]faultKind{
	publishedTwin: duplication, diesBefore: crash, diesInside: crash, diesAfter: crash, diesRelaying: crash,
	handlerFails: failing, handlerDies: failing,
}

// An event is something that can happen next.
type event struct {
	fault  faultKind
	how    how
	parked bool // it is about s.parked[i], not about s.flight[i]
	i      int  // -1: not about a message
}

var (
	runHow    = []how{publishedTwin, diesBefore, diesInside, diesAfter, diesRelaying, handlerFails, handlerDies}
	settleHow = []how{publishedTwin, diesInside, diesAfter, diesRelaying}
	localHow  = append(settleHow[:len(settleHow):len(settleHow)], handlerFails)
	parkedHow = []how{diesBefore, diesInside, diesRelaying, handlerFails, handlerDies}
)

// events returns all that can happen next, what is no fault first. It depends on nothing but s, so that
// a number in it means the same in every run.
func (sys *system) events(s *modelState) []event {
	for i, e := range s.flight {
		if !sys.patient && sys.absorbed(s, e) {
			return []event{{i: i}} // now or later, it changes nothing
		}
	}
	var free, faults []event
	for place, all := range [][]envelope{s.flight, s.parked} {
		parked := place == 1
		for i, e := range all {
			if before := indexOf(all[:i], e); before >= 0 {
				continue // that copy is as good
			}
			free = append(free, event{parked: parked, i: i})
			for _, h := range sys.hows(s, e, parked) {
				faults = append(faults, event{fault: faultOf[h], how: h, parked: parked, i: i})
			}
		}
	}
	if _, _, ok := sys.due(s); ok {
		if len(free) == 0 {
			free = append(free, event{i: -1})
		} else {
			faults = append(faults, event{fault: early, i: -1})
		}
	}
	return append(append(free, faults...), event{fault: cancelling, i: -1})
}

func indexOf(all []envelope, e envelope) int {
	for i := range all {
		if all[i].text == e.text && all[i].redelivered == e.redelivered {
			return i
		}
	}
	return -1
}

// absorbed reports whether the message has nothing to do any more, whatever comes before it.
func (sys *system) absorbed(s *modelState, e envelope) bool {
	h := handling{system: sys, s: s, e: e}
	c := s.cells[h.key()]
	switch sys.decide(c, e, false) {
	case inbox.Duplicate:
		return sys.bug != foldTwice || e.to.step != nil
	case inbox.Superseded:
		return !e.redelivered || c.state != inbox.Void || c.attempts > 0
	}
	return false
}

// hows returns in which ways a message can go wrong.
func (sys *system) hows(s *modelState, e envelope, parked bool) []how {
	h := handling{system: sys, s: s, e: e}
	switch {
	case parked:
		return parkedHow
	case e.to.step != nil && sys.decide(s.cells[h.key()], e, false) == inbox.Run:
		return runHow
	case e.to.step == nil && sys.local:
		return localHow
	}
	return settleHow
}

// due returns which instance is due next, and when.
func (sys *system) due(s *modelState) (path string, at machine.Millis, ok bool) {
	for _, p := range s.host.paths() {
		if due, _, any := s.host.due(p, 0); any && (!ok || due < at) {
			path, at, ok = p, due, true
		}
	}
	return path, at, ok
}

// happen has e happen in s, and says what that was.
func (x *search) happen(s *modelState, e event) string {
	s.used[e.fault]++
	s.used[noFault] = 0
	switch {
	case e.fault == cancelling:
		sent, said, err := x.move(s, "", flow.Event{Event: machine.Event{Kind: machine.Cancel}})
		if err != nil {
			return x.unless(s, err, "a person cancels the saga, which refuses")
		}
		x.publish(s, sent)
		return "a person cancels the saga: " + said
	case e.i < 0:
		path, at, _ := x.due(s)
		s.host.now = at
		sent, said, err := x.move(s, path, timerEvent)
		if err != nil {
			return x.unless(s, err, "time passes")
		}
		x.publish(s, sent)
		return fmt.Sprintf("it is %s later: %s", at.Duration(), said)
	}
	return x.handle(s, e)
}

// unless lets an error be that a decision is refused.
func (x *search) unless(s *modelState, err error, said string) string {
	if !errors.Is(err, machine.ErrRefused) {
		s.breaks("%s: %s", said, explain(err, x.tx != nil, "Model.Tx"))
	}
	return said
}

// handle has a message handled.
func (x *search) handle(s *modelState, e event) string {
	from := &s.flight
	if e.parked {
		from = &s.parked
	}
	h := &handling{system: x.system, s: s, e: (*from)[e.i], parked: e.parked, how: e.how, seed: x.seed}
	if e.how != publishedTwin {
		*from = append((*from)[:e.i:e.i], (*from)[e.i+1:]...)
	}
	h.e.to.reached = true
	if h.e.to.step != nil {
		h.count()
	}
	var (
		lost   = e.how == diesBefore || e.how == diesInside
		before *modelState
		world  any
	)
	if lost {
		before, world = s.clone(), x.box.keep()
	}
	commit := x.begin()
	if h.e.to.step == nil {
		h.conduct()
	} else if e.how != diesBefore {
		h.work()
	}
	commit(!lost)
	if lost {
		x.lose(h, before, world)
	} else {
		x.deliverSent(h)
	}
	return h.told()
}

// begin begins a transaction, which commit ends.
func (sys *system) begin() (commit func(ok bool)) {
	if sys.tx == nil {
		return func(bool) {}
	}
	around := sys.tx
	inner, err := around.Begin(sys.ctx)
	if err != nil {
		sys.fail("savepoint: %v", err)
	}
	sys.tx = inner
	return func(ok bool) {
		sys.tx = around
		end := inner.Rollback
		if ok {
			end = inner.Commit
		}
		if err := end(sys.ctx); err != nil {
			sys.fail("savepoint: %v", err)
		}
	}
}

// lose takes back what a transaction has done whose process has died. The message comes again.
func (x *search) lose(h *handling, before *modelState, world any) {
	if h.how == diesBefore {
		h.said = "taken"
	}
	done := h.s.cells[h.key()]
	used, again := h.s.used, h.e
	x.box.lose(world)
	*h.s = *before
	h.s.used = used
	switch {
	case h.parked:
		h.s.parked = append(h.s.parked, h.e)
	case h.bug != ackBeforeCommit:
		again.redelivered = true
		h.s.flight = append(h.s.flight, again)
	}
	if h.bug == publishBeforeCommit {
		x.publish(h.s, h.sent)
	}
	if h.bug == dedupeBeforeWork && h.e.to.step != nil {
		if h.how == diesBefore {
			h.record(&done)
			done.state = map[inbox.Kind]inbox.State{inbox.Action: inbox.Done, inbox.Compensation: inbox.Compensated}[h.e.to.kind]
		}
		h.s.cells[h.key()] = done
	}
}

// deliverSent publishes what a transaction that has committed has sent.
func (x *search) deliverSent(h *handling) {
	if h.how == diesAfter && h.bug != ackBeforeCommit {
		again := h.e
		again.redelivered = true
		h.s.flight = append(h.s.flight, again)
	}
	if h.how == diesRelaying {
		if h.bug == markBeforePublish {
			return
		}
		x.publish(h.s, h.sent)
	}
	x.publish(h.s, h.sent)
}

// publish gives messages to the broker.
func (sys *system) publish(s *modelState, sent []outbox.Message) {
	for _, m := range sent {
		for _, l := range sys.letters(m) {
			s.flight = append(s.flight, envelope{letter: l})
		}
	}
}

// told says what has happened, for people.
func (h *handling) told() string {
	again := ""
	if h.e.redelivered {
		again = " again"
	} else if h.parked {
		again = ", which was parked,"
	}
	name := h.e.to.name
	if h.e.to.step == nil {
		name = "the orchestrator"
	}
	of := ""
	if h.e.N != "" {
		of = " of " + h.e.N
	}
	return fmt.Sprintf("%s gets %s%s%s: %s%s", name, h.e.Type, of, again, h.said, howTold[h.how])
}
