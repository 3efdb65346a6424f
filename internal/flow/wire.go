package flow

import (
	"encoding/json"
	"fmt"

	"github.com/sagamill/sagamill/internal/cleantext"
	"github.com/sagamill/sagamill/internal/machine"
)

// HeaderReplyTo names the topic to which a participant replies. Package saga documents it, and the two types.
const HeaderReplyTo = "x-sagamill-reply-to"

// The types of the messages that an orchestrator takes.
const (
	TypeReply  = "saga.reply"
	TypeRevoke = "saga.revoke"
)

// MaxReason is how many bytes of a reason are stored. Every move of the instance stores it again, and the saga
// around the instance gets it in the reply.
const MaxReason = 500

// MaxState is how many bytes the state of an instance may have, as JSON.
const MaxState = 1 << 20

// ReplyTopic returns the topic of the messages for the orchestrator of a saga.
func ReplyTopic(saga string) string { return "saga." + saga }

// NestedStep returns the step that the replies of a nested saga name.
func NestedStep(saga string) string { return "saga-" + saga }

// ClipReason returns the beginning of a reason, as the tables can hold it.
func ClipReason(reason string) string { return cleantext.Clip(reason, MaxReason) }

// An Outcome is the member "outcome" of a reply.
type Outcome string

// The outcomes.
const (
	OutcomeDone     Outcome = "done"     // the step is done
	OutcomeRejected Outcome = "rejected" // the participant decided to do nothing
	OutcomeFailed   Outcome = "failed"   // the message is a dead letter of the participant: its effect is not known
	OutcomeHeld     Outcome = "held"     // the action is a dead letter until a person decides at the participant
	OutcomeBroken   Outcome = "broken"   // the action is a dead letter of a mistake in the participant: nothing is to be compensated
	OutcomeUndone   Outcome = "undone"   // nothing is left of the step, or there never was anything
)

// A ReplyBody is the body of a [TypeReply] message.
type ReplyBody struct {
	Outcome Outcome         `json:"outcome"`
	Result  json.RawMessage `json:"result,omitempty"` // of OutcomeDone
	Reason  string          `json:"reason,omitempty"` // of all outcomes but OutcomeDone; with NotDone: why the action had failed, if it had

	// NotDone says with OutcomeUndone that the action has not happened, and never will. Orchestrators that do not know the
	// member ignore it.
	NotDone bool `json:"not_done,omitempty"`
}

// A Revocation is the body of a [TypeRevoke] message. Its n is the path of the instance.
type Revocation struct {
	Reason string `json:"reason"`
}

// ToEvent returns what the reply to one attempt, or to its compensation, means to the machine. Its error says which
// outcomes that reply may have.
func (b ReplyBody) ToEvent(to Address, undo bool) (Event, error) {
	kinds, allowed := map[Outcome]machine.EventKind{
		OutcomeDone: machine.Replied, OutcomeRejected: machine.Refused, OutcomeFailed: machine.Failed,
		OutcomeHeld: machine.Held, OutcomeBroken: machine.Broken,
	}, "an action: done, rejected, failed, held, broken"
	if undo {
		kinds, allowed = map[Outcome]machine.EventKind{
			OutcomeUndone: machine.Replied, OutcomeRejected: machine.Refused, OutcomeFailed: machine.Failed,
		}, "a compensation: undone, rejected, failed"
	}
	kind, ok := kinds[b.Outcome]
	if !ok {
		return Event{}, fmt.Errorf("outcome %.40q is not one of those for %s", b.Outcome, allowed)
	}
	event := machine.Event{Kind: kind, Step: to.Step, Attempt: to.Attempt, Undo: undo, Reason: ClipReason(b.Reason), NotDone: b.NotDone}
	return Event{Event: event, Data: b.Result}, nil
}
