package sagatest

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/outbox"
	"github.com/sagamill/sagamill/saga"
)

// parseMessage returns the event of a message of type [saga.TypeReply] or [saga.TypeRevoke], and the path of the
// instance that it is for.
func parseMessage(m outbox.Message) (path string, e flow.Event, err error) {
	if m.Type == saga.TypeRevoke {
		var body flow.Revocation
		err := json.Unmarshal(m.Payload, &body)
		return m.N, flow.Event{Event: machine.Event{Kind: machine.Revoke, Reason: body.Reason}}, err
	}
	to, undo, err := flow.ParseReplyN(m.N)
	if err != nil {
		return "", e, err
	}
	var body flow.ReplyBody
	if err := json.Unmarshal(m.Payload, &body); err != nil {
		return "", e, err
	}
	e, err = body.ToEvent(to, undo)
	return to.Path, e, err
}

// commandMessage returns the message of a command.
func (i *instance) commandMessage(c *flow.Command) outbox.Message {
	if c.Nested != "" {
		return i.completeMessage(outbox.Message{
			Topic: saga.Topic(c.Nested), Type: saga.TypeRevoke, Step: c.Step, N: c.N,
			Payload: encodeJSON(flow.Revocation{Reason: i.Progress.Reason}),
		})
	}
	m := outbox.Message{
		Topic: c.Topic, Type: c.Type, Step: c.Step, N: c.N, Payload: c.Body,
		Headers: map[string]string{saga.HeaderReplyTo: saga.Topic(i.flow.Name())},
	}
	if c.Codec != nil {
		m.ContentType = c.Codec.ContentType()
	}
	return i.completeMessage(m)
}

// answerToParent returns the reply of a nested instance that has ended.
func (i *instance) answerToParent() outbox.Message {
	p := &i.Progress
	r := flow.ReplyBody{Outcome: flow.OutcomeRejected, Reason: p.Reason}
	switch {
	case p.Revoke:
		r = flow.ReplyBody{Outcome: flow.OutcomeUndone}
	case p.Phase == machine.Completed:
		r = flow.ReplyBody{Outcome: flow.OutcomeDone, Result: i.State}
	}
	return i.completeMessage(outbox.Message{
		Topic: saga.Topic(i.parent), Type: saga.TypeReply, Step: flow.NestedStep(i.flow.Name()), N: flow.ReplyN(i.Path, p.Revoke, ""),
		Payload: encodeJSON(r),
	})
}

// completeMessage fills in the fields that all messages of an instance share.
func (i *instance) completeMessage(m outbox.Message) outbox.Message {
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

func encodeJSON(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // strings and JSON
	}
	return data
}

// deterministicID returns a UUIDv7 that is the same in every run, so that a failure can be repeated. Its time is the
// beginning of the epoch.
func deterministicID(parts ...string) string {
	text := ""
	for _, p := range parts {
		text += fmt.Sprintf("%d %s ", len(p), p)
	}
	id := uuid.NewSHA1(uuid.Nil, []byte(text))
	copy(id[:6], make([]byte, 6))
	id[6] = id[6]&0x0f | 0x70
	return id.String()
}

// statusOf returns the status of a progress.
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
