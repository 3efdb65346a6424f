package sagatest

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// A reply is the body of a [saga.TypeReply] message.
type reply struct {
	Outcome saga.Outcome    `json:"outcome"`
	Result  json.RawMessage `json:"result,omitempty"`
	Reason  string          `json:"reason,omitempty"`
}

// A revocation is the body of a [saga.TypeRevoke] message.
type revocation struct {
	Reason string `json:"reason"`
}

// events are what outcomes are to the machine, for an action and for a compensation.
var events = map[bool]map[saga.Outcome]machine.EventKind{
	false: {saga.OutcomeDone: machine.Replied, saga.OutcomeRejected: machine.Refused, saga.OutcomeFailed: machine.Failed},
	true:  {saga.OutcomeUndone: machine.Replied, saga.OutcomeRejected: machine.Refused, saga.OutcomeFailed: machine.Failed},
}

// parseReply returns what a message of type [saga.TypeReply] says, and to which instance.
func parseReply(m outbox.Message) (path string, a flow.Reply, err error) {
	to, undo, err := flow.ParseReplyN(m.N)
	if err != nil {
		return "", a, err
	}
	var r reply
	if err := json.Unmarshal(m.Payload, &r); err != nil {
		return "", a, err
	}
	kind, ok := events[undo][r.Outcome]
	if !ok {
		return "", a, fmt.Errorf("outcome %q is not one for this side of a step", r.Outcome)
	}
	return to.Path, flow.Reply{Step: to.Step, Attempt: to.Attempt, Undo: undo, Kind: kind, Reason: r.Reason, Result: r.Result}, nil
}

// revoke does what a message of type [saga.TypeRevoke] says.
func revoke(ctx context.Context, r *flow.Run, m outbox.Message) error {
	var body revocation
	if err := json.Unmarshal(m.Payload, &body); err != nil {
		return err
	}
	return r.Apply(ctx, machine.Event{Kind: machine.Revoke, Reason: body.Reason})
}

// message returns what is sent for a command of an instance.
func (i *instance) message(c flow.Command) outbox.Message {
	if c.Nested != "" {
		return i.send(outbox.Message{
			Topic: saga.Topic(c.Nested), Type: saga.TypeRevoke, Step: c.Step, N: c.N,
			Payload: encode(revocation{Reason: i.Progress.Reason}),
		})
	}
	return i.send(outbox.Message{
		Topic: c.Topic, Type: c.Type, Step: c.Step, N: c.N, Payload: c.Body,
		Headers: map[string]string{saga.HeaderReplyTo: saga.Topic(i.flow.Name())},
	})
}

// answer returns what a nested instance that has ended tells the one around it.
func (i *instance) answer() outbox.Message {
	p := &i.Progress
	r := reply{Outcome: saga.OutcomeRejected, Reason: p.Reason}
	switch {
	case p.Revoke:
		r = reply{Outcome: saga.OutcomeUndone}
	case p.Phase == machine.Completed:
		r = reply{Outcome: saga.OutcomeDone, Result: i.State}
	}
	return i.send(outbox.Message{
		Topic: saga.Topic(i.parent), Type: saga.TypeReply, Step: "saga-" + i.flow.Name(), N: flow.ReplyN(i.Path, p.Revoke, ""),
		Payload: encode(r),
	})
}

// send fills in what all messages of an instance have in common.
func (i *instance) send(m outbox.Message) outbox.Message {
	if m.Scope == "" {
		m.Scope = i.Scope
	}
	if m.Key == "" {
		m.Key = i.Key
	}
	if m.CorrelationID == "" {
		m.CorrelationID = i.Root
	}
	if m.Type == "" {
		m.Type = m.Topic
	}
	if m.Payload == nil {
		m.Payload = []byte("null")
	}
	return m
}

func encode(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // strings and JSON
	}
	return data
}

// idOf returns a UUIDv7 that is the same in every run: a test that fails once fails
// always. Its time is the beginning of the epoch.
func idOf(parts ...string) string {
	text := ""
	for _, p := range parts {
		text += fmt.Sprintf("%d %s ", len(p), p)
	}
	id := uuid.NewSHA1(uuid.Nil, []byte(text))
	copy(id[:6], make([]byte, 6))
	id[6] = id[6]&0x0f | 0x70
	return id.String()
}

// statusOf returns what a progress comes to.
func statusOf(p *machine.Progress) saga.Status {
	switch {
	case p.Phase.Ended():
		return saga.Status(p.Phase)
	case p.Stuck():
		return saga.StatusStuck
	case p.Paused:
		return saga.StatusPaused
	default:
		return saga.Status(p.Phase)
	}
}
