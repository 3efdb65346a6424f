package sagatest

import (
	"errors"
	"fmt"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
)

// how says in which way a message is handled.
type how int

const (
	plainly       how = iota
	publishedTwin     // a second copy of it stays in flight
	diesBefore        // the process dies before the handler
	diesInside        // … after the handler, before COMMIT
	diesAfter         // … after COMMIT, before the ack
	diesRelaying      // … the relay's process, after it has published, before its checkpoint
	handlerFails
	handlerDies // until its message is a dead letter
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

// faultKind is a kind of fault that ExploreOptions limit.
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
	parked bool // it is for s.parked[i], not for s.flight[i]
	i      int  // -1: it is for no message
}

var (
	runHow    = []how{publishedTwin, diesBefore, diesInside, diesAfter, diesRelaying, handlerFails, handlerDies}
	settleHow = []how{publishedTwin, diesInside, diesAfter, diesRelaying}
	localHow  = append(settleHow[:len(settleHow):len(settleHow)], handlerFails)
	parkedHow = []how{diesBefore, diesInside, diesRelaying, handlerFails, handlerDies}
)

// listEvents returns all events that can happen next. Those without a fault come first. The list depends on s alone,
// so an index in it means the same event in every run.
func (sys *system) listEvents(s *modelState) []event {
	for i, e := range s.flight {
		if !sys.patient && sys.isAbsorbed(s, e) {
			return []event{{i: i}} // the order does not matter: it changes nothing
		}
	}
	var free, faults []event
	for place, all := range [][]envelope{s.flight, s.parked} {
		parked := place == 1
		for i, e := range all {
			if before := indexOfCopy(all[:i], e); before >= 0 {
				continue // the earlier copy is the same
			}
			free = append(free, event{parked: parked, i: i})
			for _, h := range sys.waysToFail(s, e, parked) {
				faults = append(faults, event{fault: faultOf[h], how: h, parked: parked, i: i})
			}
		}
	}
	if _, _, ok := sys.nextDue(s); ok {
		if len(free) == 0 {
			free = append(free, event{i: -1})
		} else {
			faults = append(faults, event{fault: early, i: -1})
		}
	}
	return append(append(free, faults...), event{fault: cancelling, i: -1})
}

func indexOfCopy(all []envelope, e envelope) int {
	for i := range all {
		if all[i].text == e.text && all[i].redelivered == e.redelivered {
			return i
		}
	}
	return -1
}

// isAbsorbed reports whether the message changes nothing, whatever happens before it.
func (sys *system) isAbsorbed(s *modelState, e envelope) bool {
	h := handling{system: sys, s: s, e: e}
	c := s.cells[h.cellKeyOf()]
	switch sys.askInbox(c, e, false) {
	case inbox.Duplicate:
		return sys.bug != foldTwice || e.to.step != nil
	case inbox.Superseded:
		return !e.redelivered || c.state != inbox.Void || c.attempts > 0
	}
	return false
}

// waysToFail returns the ways in which the handling of a message can fail.
func (sys *system) waysToFail(s *modelState, e envelope, parked bool) []how {
	h := handling{system: sys, s: s, e: e}
	switch {
	case parked:
		return parkedHow
	case e.to.step != nil && sys.askInbox(s.cells[h.cellKeyOf()], e, false) == inbox.Run:
		return runHow
	case e.to.step == nil && sys.local:
		return localHow
	}
	return settleHow
}

// nextDue returns the instance that is due next, and when.
func (sys *system) nextDue(s *modelState) (path string, at machine.Millis, ok bool) {
	for _, p := range s.host.sortedPaths() {
		if due, _, any := s.host.nextDueOf(p, 0); any && (!ok || due < at) {
			path, at, ok = p, due, true
		}
	}
	return path, at, ok
}

// performEvent applies e to s, and describes it.
func (x *search) performEvent(s *modelState, e event) string {
	s.used[e.fault]++
	s.used[noFault] = 0
	switch {
	case e.fault == cancelling:
		sent, said, err := x.moveInstance(s, "", flow.Event{Event: machine.Event{Kind: machine.Cancel}})
		if err != nil {
			return x.allowRefusal(s, err, "a person cancels the saga, which refuses")
		}
		x.publishAll(s, sent)
		return "a person cancels the saga: " + said
	case e.i < 0:
		path, at, _ := x.nextDue(s)
		s.host.now = at
		sent, said, err := x.moveInstance(s, path, timerEvent)
		if err != nil {
			return x.allowRefusal(s, err, "time passes")
		}
		x.publishAll(s, sent)
		return fmt.Sprintf("it is %s later: %s", at.Duration(), said)
	}
	return x.handleEnvelope(s, e)
}

// allowRefusal accepts a verb that the instance refuses. Any other error breaks the model.
func (x *search) allowRefusal(s *modelState, err error, said string) string {
	if !errors.Is(err, machine.ErrRefused) {
		s.noteBroken("%s: %s", said, explainError(err, x.tx != nil, "Model.Tx"))
	}
	return said
}

// handleEnvelope handles a message in the way that e says.
func (x *search) handleEnvelope(s *modelState, e event) string {
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
		h.countEntry()
	}
	var (
		lost   = e.how == diesBefore || e.how == diesInside
		before *modelState
		world  any
	)
	if lost {
		before, world = s.cloneState(), x.box.keep()
	}
	commit := x.beginSavepoint()
	if h.e.to.step == nil {
		h.runOrchestrator()
	} else if e.how != diesBefore {
		h.runParticipant()
	}
	commit(!lost)
	if lost {
		x.loseTransaction(h, before, world)
	} else {
		x.deliverSent(h)
	}
	return h.describeHandling()
}

// beginSavepoint begins a savepoint in Tx, if there is one. commit ends it.
func (sys *system) beginSavepoint() (commit func(ok bool)) {
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

// loseTransaction rolls back the transaction of a process that died. The message is redelivered.
func (x *search) loseTransaction(h *handling, before *modelState, world any) {
	if h.how == diesBefore {
		h.said = "taken"
	}
	done := h.s.cells[h.cellKeyOf()]
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
		x.publishAll(h.s, h.sent)
	}
	if h.bug == dedupeBeforeWork && h.e.to.step != nil {
		if h.how == diesBefore {
			h.recordDigest(&done)
			done.state = map[inbox.Kind]inbox.State{inbox.Action: inbox.Done, inbox.Compensation: inbox.Compensated}[h.e.to.kind]
		}
		h.s.cells[h.cellKeyOf()] = done
	}
}

// deliverSent publishes the messages of a committed transaction.
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
		x.publishAll(h.s, h.sent)
	}
	x.publishAll(h.s, h.sent)
}

// publishAll puts messages in flight, one copy for each route.
func (sys *system) publishAll(s *modelState, sent []outbox.Message) {
	for _, m := range sent {
		for _, l := range sys.lettersFor(m) {
			s.flight = append(s.flight, envelope{letter: l})
		}
	}
}

// describeHandling describes what has happened to a message, for people.
func (h *handling) describeHandling() string {
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
