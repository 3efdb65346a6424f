package sagarow

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/sagamill/sagamill/internal/fieldhash"
	"github.com/sagamill/sagamill/internal/flow"
	"github.com/sagamill/sagamill/internal/machine"
	"github.com/sagamill/sagamill/internal/outboxsql"
	"github.com/sagamill/sagamill/internal/traceheader"
	"github.com/sagamill/sagamill/outbox"
)

// Messages collects what a row sends in one transaction, in order.
type Messages struct {
	row *Row
	all []outbox.Message
}

// NewMessages returns an empty collection.
func NewMessages(row *Row) *Messages { return &Messages{row: row} }

// AddCommand adds a command or a compensation, or the order to compensate a nested instance. That order is a
// message, so the work on an instance locks no instance that is nested in it.
func (m *Messages) AddCommand(c *flow.Command) {
	if c.Nested != "" {
		m.addCompleted(outbox.Message{
			Topic: flow.ReplyTopic(c.Nested), Type: flow.TypeRevoke, Step: c.Step, N: m.markN(c.N),
			Payload: mustMarshal(flow.Revocation{Reason: m.row.Progress.Reason}),
		})
		return
	}
	headers := map[string]string{flow.HeaderReplyTo: flow.ReplyTopic(m.row.Name)}
	if c.Resent {
		headers[outbox.HeaderReplayed] = time.Now().UTC().Format(time.RFC3339)
	}
	msg := outbox.Message{Topic: c.Topic, Type: c.Type, Step: c.Step, N: m.markN(c.N), Payload: c.Body, Headers: headers}
	if c.Codec != nil {
		msg.ContentType = c.Codec.ContentType()
	}
	m.addCompleted(msg)
}

// AnswerParent adds the reply to the saga around the instance, if there is one and the instance has ended.
func (m *Messages) AnswerParent() {
	p := &m.row.Progress
	if m.row.Parent == "" || !p.Phase.Ended() {
		return
	}
	body := flow.ReplyBody{Outcome: flow.OutcomeRejected, Reason: p.Reason}
	switch {
	case p.Revoke:
		body = flow.ReplyBody{Outcome: flow.OutcomeUndone}
	case p.Phase == machine.Completed:
		body = flow.ReplyBody{Outcome: flow.OutcomeDone, Result: m.row.State}
	}
	m.addCompleted(outbox.Message{
		Topic: flow.ReplyTopic(m.row.Parent), Type: flow.TypeReply, Step: flow.NestedStep(m.row.Name),
		N: m.markN(flow.ReplyN(m.row.Path, p.Revoke, "")), Payload: mustMarshal(body),
		OrderingKey: OrderingKey(m.row.Scope, m.row.Key, m.row.Path),
	})
}

// AddEmitted adds the messages of a local step, completed by the instance's identity. Its error is
// [outbox.Validate]'s.
func (m *Messages) AddEmitted(msgs []outbox.Message) {
	m.all = append(m.all, m.completeEmitted(msgs)...)
}

// ValidateEmitted returns the [outbox.ErrInvalid] with which the outbox would refuse msgs, or nil.
func (m *Messages) ValidateEmitted(msgs []outbox.Message) error {
	return outbox.Validate(m.completeEmitted(msgs)...)
}

func (m *Messages) completeEmitted(msgs []outbox.Message) (completed []outbox.Message) {
	for _, msg := range msgs {
		msg.Scope, msg.Key = cmp.Or(msg.Scope, m.row.Scope), cmp.Or(msg.Key, m.row.Key)
		msg.CorrelationID = cmp.Or(msg.CorrelationID, m.row.Root)
		if msg.Scope == m.row.Scope && msg.Key == m.row.Key {
			msg.Incarnation = cmp.Or(msg.Incarnation, m.ownIncarnation())
		}
		msg.Incarnation = cmp.Or(msg.Incarnation, outbox.NoIncarnation)
		completed = append(completed, msg)
	}
	return completed
}

// AppendFrom adds the messages of an instance that began in the same transaction.
func (m *Messages) AppendFrom(of *Messages) { m.all = append(m.all, of.all...) }

// AllTraced returns the messages, in the trace of the instance's start.
func (m *Messages) AllTraced() []outbox.Message {
	if m.row.Trace[0] == "" {
		return m.all
	}
	for i := range m.all {
		m.all[i].Headers = traceheader.Add(m.all[i].Headers, traceLimits, m.row.Trace[0], m.row.Trace[1])
	}
	return m.all
}

var traceLimits = traceheader.Limits{Count: outbox.MaxHeaders, Bytes: outbox.MaxHeaderBytes}

// AllUntraced returns the messages without a trace of their own: the relay or the consumer adds that of its context.
func (m *Messages) AllUntraced() []outbox.Message { return m.all }

// addCompleted completes a message by what all messages of the instance have in common.
func (m *Messages) addCompleted(msg outbox.Message) {
	msg.Scope, msg.Key, msg.Incarnation, msg.CorrelationID = m.row.Scope, m.row.Key, m.ownIncarnation(), m.row.Root
	msg.OrderingKey = cmp.Or(msg.OrderingKey, OrderingKey(msg.Scope, msg.Key, msg.N))
	if msg.Payload == nil && msg.ContentType == "" {
		msg.Payload = []byte("null")
	}
	m.all = append(m.all, msg)
}

// markN returns the n of a message, without the incarnation: the outbox adds that.
func (m *Messages) markN(n string) string {
	_, rest := flow.Incarnation(n)
	return flow.Mark(m.row.Root, rest)
}

// ownIncarnation returns the incarnation of all messages of the instance's saga.
func (m *Messages) ownIncarnation() string {
	incarnation, _ := flow.Incarnation(m.row.Path)
	return cmp.Or(incarnation, outbox.NoIncarnation)
}

func mustMarshal(body any) []byte {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings, and JSON
	}
	return data
}

// maxOrderingKey is the outbox's limit.
const maxOrderingKey = 255 + outbox.MaxScope + 1

// OrderingKey orders the messages about one attempt at one step. The relay publishes those of parallel steps in
// parallel. It begins with the ordering key of the saga, which a row of the outbox leaves out.
func OrderingKey(scope, key, n string) string {
	s := outboxsql.SagaKey(scope, key) + "\x1f" + n
	if len(s) > maxOrderingKey {
		return fieldhash.Hex(sha256.New(), scope, key, n)
	}
	return s
}
