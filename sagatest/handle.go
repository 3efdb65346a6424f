package sagatest

import (
	"context"
	"errors"
	"hash/maphash"

	"github.com/jackc/pgx/v5"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/inbox"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// errInjected is the error of a handler that Explore makes fail.
var errInjected = errors.New("an injected error")

// actionDead is the reason of a compensation whose action is a dead letter that it may not cancel.
const actionDead = "action-dead"

// A handling is the work on one envelope, which is neither in flight nor parked any more. It changes the state as its
// transaction would, and collects the messages.
type handling struct {
	*system
	s       *modelState
	e       envelope
	parked  bool // e was
	how     how
	seed    maphash.Seed
	verdict inbox.Verdict
	said    string // the result, for people
	sent    []outbox.Message
}

func (h *handling) cellKeyOf() cellKey {
	k := cellKey{step: h.e.to.name, key: h.e.Key, n: h.e.N, ofWorker: h.e.to.step != nil}
	if h.bug == keyWithoutN && k.ofWorker {
		k.n = ""
	}
	return k
}

// askInbox returns the verdict of the inbox on an envelope.
func (sys *system) askInbox(c cell, e envelope, parked bool) inbox.Verdict {
	cancels := e.to.step != nil && e.to.step.CancelParked
	return inbox.Decide(
		inbox.Cell{State: c.state, Attempts: c.attempts, Digest: digestBytes(c.digest), UndoDigest: digestBytes(c.undoDigest)},
		inbox.Arrival{Kind: e.to.kind, Digest: e.digest, Parked: parked, CancelParked: cancels})
}

func digestBytes(digest string) []byte {
	if digest == "" {
		return nil
	}
	return []byte(digest)
}

// countEntry counts an entry into the handler in a commit before it, because a redelivered message may have killed its
// process.
func (h *handling) countEntry() {
	c := h.s.cells[h.cellKeyOf()]
	first := 2
	if h.e.to.step.MaxAttempts == 1 {
		first = 1
	}
	switch {
	case !h.e.redelivered && first == 2 || h.parked:
		return
	case h.e.to.kind == inbox.Compensation && c.state == inbox.Done && c.undoDigest == "":
		c.undoAttempts = max(c.undoAttempts+1, first)
	case h.e.to.kind == inbox.Action && (c.state == inbox.Absent || c.state == inbox.Open):
		c.state, c.attempts = inbox.Open, max(c.attempts+1, first)
	}
	h.s.cells[h.cellKeyOf()] = c
}

// runParticipant carries out the verdict of the inbox on a message to a participant.
func (h *handling) runParticipant() {
	c := h.s.cells[h.cellKeyOf()]
	h.verdict = h.askInbox(c, h.e, h.parked)
	h.said = string(h.verdict)
	switch h.verdict {
	case inbox.Run:
		h.enterHandler(c)
	case inbox.Tombstone:
		h.recordDigest(&c)
		h.changeFact(func(f *fact) { f.voided = true })
		if h.bug != noTombstone {
			c.state = inbox.Void
		}
		h.s.cells[h.cellKeyOf()] = c
		h.dropParked()
		h.said = "nothing to undo, a tombstone is left"
		h.callUnhandled(consumer.Unhandled{})
	case inbox.Wait:
		h.recordDigest(&c)
		h.s.cells[h.cellKeyOf()] = c
		h.s.parked = append(h.s.parked, h.e)
		h.said = "parked behind the action"
	case inbox.Refuse:
		h.makeDeadLetter(c, actionDead, "the action is a dead letter")
	case inbox.Reused:
		h.makeDeadLetter(c, "key-reused", "the key was used for another payload")
		h.blameModel("the key was used for another payload", h.s.countFaults() == 0)
	case inbox.Superseded:
		if h.e.redelivered && c.state == inbox.Void && c.attempts == 0 && !h.e.to.step.CancelParked {
			c.attempts = 1
			h.s.cells[h.cellKeyOf()] = c
			h.makeDeadLetter(c, "superseded", "an earlier delivery may have died in the handler")
		}
	}
}

// recordDigest notes the digest of the payload.
func (h *handling) recordDigest(c *cell) {
	if h.e.to.kind == inbox.Compensation {
		c.undoDigest = string(h.e.digest)
	} else {
		c.digest = string(h.e.digest)
	}
}

// dropParked removes the parked action that a compensation has cancelled.
func (h *handling) dropParked() {
	kept := h.s.parked[:0:0]
	for _, e := range h.s.parked {
		if e.to.step != h.e.to.step || e.to.kind != inbox.Action || e.Key != h.e.Key || e.N != h.e.N {
			kept = append(kept, e)
		}
	}
	h.s.parked = kept
}

// enterHandler runs the handler.
func (h *handling) enterHandler(c cell) {
	entries := &c.attempts
	if h.e.to.kind == inbox.Compensation {
		entries = &c.undoAttempts
	}
	if !h.e.redelivered || h.parked {
		*entries = max(*entries+1, 1) // else countEntry has counted it
	}
	before := h.box.keep()
	msgs, err := h.invokeHandler(*entries)
	h.recordDigest(&c)
	if err != nil {
		h.box.lose(before)
		h.endFailed(c, *entries, err)
		return
	}
	h.endSucceeded(c, msgs)
}

// invokeHandler runs the handler in a savepoint. An error rolls that back.
func (h *handling) invokeHandler(attempt int) (msgs []outbox.Message, err error) {
	d := h.newDelivery()
	d.Attempt = attempt
	h.box.touch()
	failed, err := h.runInSavepoint(h.ctx, func(tx pgx.Tx) error {
		msgs, err = h.e.to.input.Invoke(h.ctx, tx, d)
		if err == nil && (h.how == handlerFails || h.how == handlerDies) {
			err = errInjected
		}
		return err
	})
	return msgs, errors.Join(failed, err)
}

// runInSavepoint runs do in a savepoint, if there is a transaction.
func (sys *system) runInSavepoint(ctx context.Context, do func(tx pgx.Tx) error) (failed, err error) {
	return (&session{tx: sys.tx}).inSavepoint(ctx, do)
}

func (h *handling) newDelivery() consumer.Delivery {
	e := h.e
	metadata := message.Metadata{}
	for name, value := range e.Headers {
		metadata[name] = value
	}
	metadata[outbox.HeaderKey] = stepkey.Key{Key: e.Key, Step: e.Step, N: e.N}.String()
	metadata[outbox.HeaderScope] = e.Scope
	metadata[outbox.PropertyType] = e.Type
	metadata[outbox.PropertyCorrelation] = e.CorrelationID
	metadata[outbox.PropertyContentType] = e.ContentType
	return consumer.Delivery{
		ID: e.id, Topic: e.Topic, Type: e.Type, Scope: e.Scope, Key: e.Key, N: e.N, Step: e.to.name,
		Undo: e.to.kind == inbox.Compensation, CorrelationID: e.CorrelationID, Metadata: metadata, Payload: e.Payload,
	}
}

func (h *handling) endFailed(c cell, entries int, err error) {
	most := h.e.to.step.MaxAttempts
	if most == 0 {
		most = 10
	}
	_, _, panicked := findPanic(err)
	reason, dead := reasonOfDead(err)
	dead = dead || entries >= most
	h.blameModel(explainError(err, h.tx != nil, "Model.Tx"), panicked || dead && !errors.Is(err, errInjected))
	if h.how == handlerDies || dead {
		h.makeDeadLetter(c, reason, err.Error())
		return
	}
	c.state = inbox.ParkedState(h.e.to.kind, false)
	h.s.cells[h.cellKeyOf()] = c
	h.s.parked = append(h.s.parked, h.e)
	h.said = "failed and parked: " + err.Error()
}

// reasonOfDead returns the reason of a dead letter that a handler has left by err, and whether err alone makes one.
func reasonOfDead(err error) (reason consumer.Reason, dead bool) {
	switch {
	case errors.Is(err, outbox.ErrInvalid):
		return consumer.ReasonEmitInvalid, true
	case errors.Is(err, consumer.ErrTerminal):
		return consumer.ReasonTerminal, true
	case errors.Is(err, consumer.ErrParked):
		return consumer.ReasonParked, true
	}
	return consumer.ReasonTerminal, false
}

// blameModel reports a failure that was not injected, unless the model allows dead letters. A search that continued
// would show dead letters only.
func (h *handling) blameModel(text string, ofItsOwn bool) {
	if ofItsOwn && !h.gives {
		h.s.noteBroken("the handler of %s gives up on %s by itself, no error was injected: %s\n(if it is meant to, set DeadLetters of the Model)",
			h.e.to.name, h.e.Type, text)
	}
}

// makeDeadLetter makes the message a dead letter.
func (h *handling) makeDeadLetter(c cell, reason consumer.Reason, text string) {
	if h.verdict == inbox.Run {
		c.state = inbox.ParkedState(h.e.to.kind, true)
	}
	h.s.cells[h.cellKeyOf()] = c
	h.s.dead++
	h.said = "a dead letter: " + text
	h.callUnhandled(consumer.Unhandled{Dead: true, Reason: reason, Error: text})
}

// callUnhandled calls the step's Unhandled for a message that ends without its handler.
func (h *handling) callUnhandled(u consumer.Unhandled) {
	if h.e.to.step.Unhandled == nil {
		return
	}
	u.Delivery = h.newDelivery()
	h.box.touch()
	err := guard.Call(func() error {
		h.e.to.step.Unhandled(u, func(msgs ...outbox.Message) { h.collectSent(msgs) })
		return nil
	})
	if err != nil {
		h.s.noteBroken("Unhandled of %s: %s", h.e.to.name, explainError(err, true, ""))
	}
}

// endSucceeded moves the row of the inbox, and notes the effect of the handler.
func (h *handling) endSucceeded(c cell, msgs []outbox.Message) {
	if h.e.to.kind == inbox.Compensation {
		c.state, h.said = inbox.Compensated, "undone"
		if h.bug == undoNotDeduped {
			c.state, c.undoDigest = inbox.Done, ""
		}
		h.changeFact(func(f *fact) { f.undone++ })
	} else {
		c.state, h.said = inbox.Done, "done"
		if isRejection(msgs) {
			c.state, h.said = inbox.Refused, "rejected"
		}
		h.changeFact(func(f *fact) {
			f.overdone = f.undone > 0 || f.voided
			if h.said == "done" {
				f.done++
			}
		})
	}
	h.s.cells[h.cellKeyOf()] = c
	h.collectSent(msgs)
	h.logCommit()
	h.judgeHandler()
}

// changeFact changes the facts about the message's command.
func (h *handling) changeFact(change func(f *fact)) {
	key := factKey{h.e.to.name, h.e.Key, h.e.N}
	f := h.s.facts[key]
	change(&f)
	h.s.facts[key] = f
}

// isRejection reports whether a participant's answer is a rejection.
func isRejection(msgs []outbox.Message) bool {
	for _, m := range msgs {
		if m.Type == saga.TypeReply {
			_, e, err := parseMessage(m)
			return err == nil && e.Kind == machine.Refused
		}
	}
	return false
}

// collectSent adds to the messages of the transaction. The suffix of a failure is random in package saga. Here it is a
// number, so that each run is the same.
func (h *handling) collectSent(msgs []outbox.Message) {
	for _, m := range msgs {
		if m.Scope == "" {
			m.Scope = h.e.Scope
		}
		if m.Key == "" {
			m.Key = h.e.Key
		}
		if m.CorrelationID == "" {
			m.CorrelationID = h.e.CorrelationID
		}
		undo := h.e.to.kind == inbox.Compensation
		if plain := flow.ReplyN(h.e.N, undo, ""); m.Type == saga.TypeReply && len(m.N) > len(plain) {
			h.s.failures++
			m.N = flow.ReplyN(h.e.N, undo, string(rune('a'+h.s.failures%26)))
		}
		h.sent = append(h.sent, m)
	}
}

// logCommit adds the message to the digest of all commits, if no Fingerprint tells states apart.
func (h *handling) logCommit() {
	if h.tx != nil && h.print == "" {
		h.s.log = maphash.Comparable(h.seed, [2]uint64{h.s.log, maphash.String(h.seed, h.e.text)})
	}
}
