package saga

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/fieldhash"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/stepkey"
	"github.com/sagamill/sagamill/outbox"
)

// HeaderReplyTo is set on a command and on a compensation: the topic to which the
// participant replies, with a message of type [TypeReply] whose step key is that of the
// command, with ".d" behind its n, or ".u" if it was a compensation. [On] and [OnUndo] do that.
// Another step than the command's will do, unless the orchestrator has [Options].NamedReplies.
const HeaderReplyTo = "x-sagamill-reply-to"

// The types of the messages that orchestrators take.
const (
	TypeReply  = "saga.reply"  // from a participant: JSON, see [Outcome]
	TypeRevoke = "saga.revoke" // from the orchestrator of the saga around a nested one
)

// An Outcome is what a reply says, as its member "outcome". With it come
// "result", what a step that is done has come to, and "reason", why one is not.
type Outcome string

// The outcomes.
const (
	OutcomeDone     Outcome = "done"     // the step is done
	OutcomeRejected Outcome = "rejected" // it has done nothing, by its own decision
	OutcomeFailed   Outcome = "failed"   // the message is a dead letter of the participant's: what it has done is not known
	OutcomeUndone   Outcome = "undone"   // there is nothing left of the step, or there never was
)

// MaxReason is how many bytes of a reason are kept.
const MaxReason = flow.MaxReason

// A reply is the body of a TypeReply message.
type reply struct {
	Outcome Outcome         `json:"outcome"`
	Result  json.RawMessage `json:"result,omitempty"`
	Reason  string          `json:"reason,omitempty"`
}

// events are what outcomes are to the machine, for an action and for a compensation.
var events = map[bool]map[Outcome]machine.EventKind{
	false: {OutcomeDone: machine.Replied, OutcomeRejected: machine.Refused, OutcomeFailed: machine.Failed},
	true:  {OutcomeUndone: machine.Replied, OutcomeRejected: machine.Refused, OutcomeFailed: machine.Failed},
}

// event returns the reply for the machine.
func (r reply) event(to flow.Address, undo bool) (flow.Reply, error) {
	kind, ok := events[undo][r.Outcome]
	if !ok {
		return flow.Reply{}, fmt.Errorf("saga: outcome %.40q is not one of those for %s", r.Outcome, side(undo))
	}
	return flow.Reply{Step: to.Step, Attempt: to.Attempt, Undo: undo, Kind: kind, Reason: clip(r.Reason), Result: r.Result}, nil
}

func side(undo bool) string {
	if undo {
		return "a compensation: undone, rejected, failed"
	}
	return "an action: done, rejected, failed"
}

// answer returns the message that answers d; tell is that of flow.ReplyN.
func answer(d consumer.Delivery, r reply, tell string) (outbox.Message, error) {
	to := d.Metadata.Get(HeaderReplyTo)
	if to == "" {
		return outbox.Message{}, fmt.Errorf("saga: the message has no header %s, so it is not a command of a saga", HeaderReplyTo)
	}
	if d.N == "" {
		return outbox.Message{}, fmt.Errorf("saga: the step key of the command has no n")
	}
	r.Reason = clip(r.Reason)
	body, err := json.Marshal(r)
	if err != nil {
		return outbox.Message{}, fmt.Errorf("saga: result: %w", err)
	}
	return outbox.Message{
		Topic: to, Type: TypeReply, Step: namedStep(&d), N: flow.ReplyN(d.N, d.Undo, tell), Payload: body,
		Scope: d.Scope, Key: d.Key, OrderingKey: orderingKey(d.Scope, d.Key, d.N),
	}, nil
}

// namedStep returns the step that d's sender has named. To a command that is the saga's
// step, whatever the participant calls its own.
func namedStep(d *consumer.Delivery) string {
	key, err := stepkey.Parse(d.Metadata.Get(outbox.HeaderKey))
	if err != nil { // it did not come by a broker
		return d.Step
	}
	return key.Step
}

// maxOrderingKey is the outbox's limit.
const maxOrderingKey = 255 + outbox.MaxScope + 1

// orderingKey keeps what is about one attempt at one step in order, and lets
// parallel steps be published in parallel. Its parts cannot run into each other.
func orderingKey(scope, key, n string) string {
	s := fmt.Sprintf("%s %d %s %s", n, len(scope), scope, key)
	if len(s) > maxOrderingKey {
		return fieldhash.Hex(sha256.New(), scope, key, n)
	}
	return s
}
