package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sagamill/sagamill/internal/failpoint"
	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// A Publication is one message on its way to the broker. Its Message has the message id as UUID
// and this package's headers and properties as metadata.
type Publication struct {
	Topic   string
	Message *message.Message
}

// A Publisher hands messages to a broker.
//
// PublishBatch publishes batch and returns one result for each message, in the order of batch.
// All messages have the same topic, and no two the same ordering key, so that they may be
// published in any order, or at once. A nil result means that the broker has stored the message
// durably (confirmed it) and that at least one queue has it (it was not returned).
// An error that is [ErrRefused] means that the broker answered and does not accept this message
// as things are. An [ErrDeferred] means that the broker is there and that the topic's queue takes
// no messages at present. Any other error means that the outcome is unknown or the broker is
// away. After these two the message is published again, under the same id.
//
// It returns once every outcome is known, or when ctx ends: then the missing results are ctx's
// error. A relay calls it from several goroutines at once, one for each of its lanes and each
// topic. Messages of one ordering key are never in two calls: the next of a key comes when there
// is a result for the one before it. The relay cancels ctx after 0.5 to 4 s if messages of other
// topics get through and none of this call's.
type Publisher interface {
	PublishBatch(ctx context.Context, batch []Publication) []error
}

// ErrRefused reports that the broker does not accept a message: it was returned as unroutable,
// or is over a size limit. Publishers wrap it. A refused message spends one of its attempts, and
// is a dead letter after the last. A message that met a broker that was away or blocked spends
// none.
var ErrRefused = errors.New("outbox: message refused by the broker")

// ErrDeferred reports that the broker is there and that a queue of the topic takes no messages at
// present. The broker nacked the message, or did not confirm it. Publishers wrap it. The message
// is not to blame: it spends no attempt and never becomes a dead letter over it. The relay keeps
// it aside and tries again until the queue takes it. The message may be stored already, or be in
// other queues of the topic, so that consumers see it again.
var ErrDeferred = errors.New("outbox: the topic's queue takes no messages at present")

// A PublishObserver sees what a relay's publisher was handed, so that a message's way through the
// broker can be part of its trace. Package telemetry has one. It is called from several
// goroutines at once, and publishing waits for it. A panic is logged, and changes nothing for the
// messages.
type PublishObserver interface {
	// Published is called after each call of the publisher in which there were messages with a
	// trace.
	Published(ctx context.Context, c Call)
}

// A Call is one of a [Publisher].
type Call struct {
	Began    time.Time
	Took     time.Duration
	Messages int             // in all
	Traced   []TracedMessage // those with a trace
}

// A TracedMessage describes a message that has a trace.
type TracedMessage struct {
	ID, Topic, Type, Step, CorrelationID string
	TraceParent, TraceState              string // as they were stored, perhaps malformed
	Bytes                                int    // of payload
	Attempt                              int    // refusals so far, and this one
	Err                                  error  // nil: published; an ErrRefused; else the outcome is not known
}

// A sender calls the publisher.
type sender struct{ *core }

// publishTopic is publishWave for messages of one topic. It gives up early if the topic stalls.
func (s sender) publishTopic(ctx context.Context, topic string, wave []*item) []error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call := s.topics.beginCall(topic)
	stop := s.topics.watchCall(call, cancel)
	results := s.publishWave(ctx, wave)
	stop()
	if s.topics.endCall(call, results, errors.Is(context.Cause(ctx), errStalled)) {
		s.opts.Logger.WarnContext(ctx, "outbox: the topic stalls: its messages are kept aside until the broker takes them",
			"schema", s.opts.Schema, "topic", topic, "error", results[0])
	}
	return results
}

// publishWave hands wave, in which no ordering key occurs twice, to the broker and returns a
// result for each message.
func (s sender) publishWave(ctx context.Context, wave []*item) []error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.PublishTimeout)
	defer cancel()
	results := make([]error, len(wave))
	publications, sent := renderWave(wave, results)
	if len(sent) == 0 {
		return results
	}
	traced, at := s.collectTraced(publications, wave, sent)
	start := time.Now()
	lost := failpoint.Hit("outbox/before-publish")
	var answers []error
	if lost == nil {
		answers = s.publishGuarded(ctx, publications)
		lost = failpoint.Hit("outbox/after-confirm")
	}
	elapsed := time.Since(start)
	for j, i := range sent {
		if lost != nil {
			results[i] = lost
			continue
		}
		if j >= len(answers) {
			results[i] = fmt.Errorf("outbox: publisher gave %d results for %d messages", len(answers), len(sent))
			continue
		}
		results[i] = answers[j]
	}
	s.counters.countCall(elapsed, results)
	s.notifyObserver(ctx, Call{Began: start, Took: elapsed, Messages: len(publications), Traced: traced}, at, results)
	return results
}

// renderWave returns the messages of wave in their form on the wire, and the place of each in
// wave. A row that cannot be rendered was written by hand: its result is a refusal.
func renderWave(wave []*item, results []error) (publications []Publication, sent []int) {
	publications = make([]Publication, 0, len(wave))
	sent = make([]int, 0, len(wave))
	for i, m := range wave {
		msg, err := m.renderMessage()
		if err != nil {
			results[i] = fmt.Errorf("%w: %w", ErrRefused, err)
			continue
		}
		publications = append(publications, Publication{Topic: m.Topic, Message: msg})
		sent = append(sent, i)
	}
	return publications, sent
}

// publishGuarded survives a publisher that panics over a message, or ends its goroutine: then the
// messages go out one by one, and the one that it happens with is refused.
func (s sender) publishGuarded(ctx context.Context, publications []Publication) (answers []error) {
	err := guard.Apart(func() error {
		answers = s.pub.PublishBatch(ctx, publications)
		return nil
	})
	switch {
	case err == nil:
		return answers
	case len(publications) == 1:
		guard.Log(ctx, s.opts.Logger, "outbox: the publisher", err)
		return []error{fmt.Errorf("%w: the publisher %w", ErrRefused, err)}
	}
	answers = nil
	for _, p := range publications {
		answers = append(answers, s.publishGuarded(ctx, []Publication{p})...)
	}
	return answers
}

// collectTraced describes those of publications that have a trace, before the publisher gets
// them: a call that was left behind may still be at work on them afterwards. sent has their
// places in wave.
func (s sender) collectTraced(publications []Publication, wave []*item, sent []int) (all []TracedMessage, at []int) {
	if s.opts.Observer == nil {
		return nil, nil
	}
	for j, p := range publications {
		parent := p.Message.Metadata[HeaderTraceParent]
		if parent == "" {
			continue
		}
		if all == nil {
			all, at = make([]TracedMessage, 0, len(sent)-j), make([]int, 0, len(sent)-j)
		}
		m := wave[sent[j]]
		all = append(all, TracedMessage{
			ID: p.Message.UUID, Topic: m.Topic, Type: m.Type, Step: m.Step, CorrelationID: m.CorrelationID,
			TraceParent: parent, TraceState: p.Message.Metadata[HeaderTraceState],
			Bytes: len(m.Payload), Attempt: m.Attempts + 1,
		})
		at = append(at, sent[j])
	}
	return all, at
}

// notifyObserver calls the observer with the publisher's answers for c.Traced, which are at the
// places at in results.
func (s sender) notifyObserver(ctx context.Context, c Call, at []int, results []error) {
	if len(c.Traced) == 0 {
		return
	}
	for k, i := range at {
		c.Traced[k].Err = results[i]
	}
	err := guard.Apart(func() error { s.opts.Observer.Published(ctx, c); return nil })
	if err != nil {
		guard.Log(ctx, s.opts.Logger, "outbox: option Observer", err)
	}
}

// renderMessage returns m in its form on the wire. The step key is made here from its stored
// parts.
func (m *row) renderMessage() (*message.Message, error) {
	msg := message.NewMessage(m.MessageID.String(), m.Payload)
	if len(m.Headers) > 0 {
		if err := json.Unmarshal(m.Headers, &msg.Metadata); err != nil {
			return nil, fmt.Errorf("outbox: stored headers of message %s: %w", msg.UUID, err)
		}
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata, 8)
	}
	msg.Metadata[HeaderKey] = stepkey.Key{Key: m.Key, Step: m.Step, N: m.N}.String()
	msg.Metadata[HeaderScope] = m.Scope
	if m.CausationID != "" {
		msg.Metadata[HeaderCausation] = m.CausationID
	}
	msg.Metadata[PropertyType] = m.Type
	if msg.Metadata[PropertyTimestamp] == "" { // a message that was delayed has one
		msg.Metadata[PropertyTimestamp] = m.CreatedAt.UTC().Format(time.RFC3339Nano)
	}
	msg.Metadata[PropertyCorrelation] = m.CorrelationID
	msg.Metadata[PropertyContentType] = m.ContentType
	return msg, nil
}
