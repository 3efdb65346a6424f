package outbox

import (
	"context"
	"time"

	"github.com/sagamill/sagamill/internal/guard"
	"github.com/sagamill/sagamill/internal/traceheader"
)

// A WriterTracer knows which trace a context belongs to, such as that of a
// request. Package telemetry has one. It must be safe for concurrent use.
type WriterTracer interface {
	// Trace returns the headers [HeaderTraceParent] and [HeaderTraceState] of
	// ctx, or "" if it belongs to no trace.
	Trace(ctx context.Context) (parent, state string)
}

// A PublishObserver is told of what a relay's publisher was handed, so that a
// message's way through the broker can be part of its trace. Package telemetry
// has one. It is called from several goroutines at once, and publishing waits for
// it. A panic is logged, and changes nothing for the messages.
type PublishObserver interface {
	// Published is called after each call of the publisher in which there were
	// messages with a trace.
	Published(ctx context.Context, c Call)
}

// A Call is one of a [Publisher].
type Call struct {
	Began    time.Time
	Took     time.Duration
	Messages int             // in all
	Traced   []TracedMessage // those with a trace
}

// A TracedMessage is what is known of one that has a trace.
type TracedMessage struct {
	ID, Topic, Type, Step, CorrelationID string
	TraceParent, TraceState              string // as they were stored, perhaps malformed
	Bytes                                int    // of payload
	Attempt                              int    // refusals so far, and this one
	Err                                  error  // nil: published; an ErrRefused; else the outcome is not known
}

var traceLimits = traceheader.Limits{Count: MaxHeaders, Bytes: MaxHeaderBytes}

// addTrace gives msgs the trace headers of ctx, where they have none of their own and there
// is room for them.
func (w *Writer) addTrace(ctx context.Context, msgs []Message) {
	if w.tracer == nil {
		return
	}
	parent, state := w.tracer.Trace(ctx)
	if parent == "" {
		return
	}
	for i := range msgs {
		msgs[i].Headers = traceheader.Add(msgs[i].Headers, traceLimits, parent, state)
	}
}

// traced notes which of publications have a trace, before a publisher has them:
// one that was left behind may still be at work on them afterwards. sent says
// where in wave they are.
func (r *Relay) traced(publications []Publication, wave []*item, sent []int) (all []TracedMessage, at []int) {
	if r.opts.Observer == nil {
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

// tell tells the observer what the publisher has answered for c.Traced, which
// are at the places at in results.
func (r *Relay) tell(ctx context.Context, c Call, at []int, results []error) {
	if len(c.Traced) == 0 {
		return
	}
	for k, i := range at {
		c.Traced[k].Err = results[i]
	}
	err := guard.Apart(func() error { r.opts.Observer.Published(ctx, c); return nil })
	if err != nil {
		guard.Log(ctx, r.opts.Logger, "outbox: option Observer", err)
	}
}
