package telemetry

import (
	"fmt"
	"hash/fnv"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/sagamill/sagamill/consumer"
	"github.com/sagamill/sagamill/internal/stepkey"
)

// pathMember is the member of a message's tracestate that lists the actions that led to the
// message. Each is a mark and its span, the latest first:
//
//	sagamill=6c62272e-b7ad6b7169203331.811c9dc5-53995c3f42cd8ad8
//
// The spans belong to the trace that the message's traceparent names. A compensation finds the
// span of its action there; no table stores it.
const pathMember = "sagamill"

// maxPath is the limit that W3C Trace Context sets to the value of a member. Nine actions fit.
const maxPath = 256

// markStep tells the steps of a saga and their repetitions apart. It hides their names, because
// a tracestate may be shown to anybody.
func markStep(in *consumer.Delivery) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(in.Step + "#" + stepkey.JoinN(in.Incarnation, in.N)))
	return fmt.Sprintf("%08x-", h.Sum32())
}

// prependAction returns path with the action in before it, whose span is given. If not all
// actions fit, the earliest are dropped.
func prependAction(path string, in *consumer.Delivery, span trace.SpanID) string {
	longer := markStep(in) + span.String()
	for action := range strings.SplitSeq(path, ".") {
		if action == "" || len(longer)+1+len(action) > maxPath {
			break
		}
		longer += "." + action
	}
	return longer
}

// findAction returns the span of the action that in compensates. If the path of in lacks it,
// the result is not valid.
func findAction(in *consumer.Delivery) trace.SpanContext {
	from, mark := writerSpan(in), markStep(in)
	for action := range strings.SplitSeq(from.TraceState().Get(pathMember), ".") {
		span, found := strings.CutPrefix(action, mark)
		if !found {
			continue
		}
		if id, err := trace.SpanIDFromHex(span); err == nil {
			return from.WithSpanID(id).WithTraceState(trace.TraceState{})
		}
	}
	return trace.SpanContext{}
}
